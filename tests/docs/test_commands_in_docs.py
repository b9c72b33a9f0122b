"""Every command of the documents works as written, in a fresh folder, as a reader types it.

The reader has a bare installation, a clone, KernelBench and a finished quickstart: no GPU, no vLLM,
no network. Quick: the commands that only look at runs, plans and keys, in this process;
what is marked in a page (`tests/docs/pages.py`) is a command line of forge, its experiment loads,
and one that `forge run` gets has a plan. Long: all commands and Python blocks of a page, in order,
in a shell. Lines of other programs are checked by kind.
"""

import itertools
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.main

from forge.adapters.http.routes import JudgeCall
from forge.cli import app, run_command
from forge.config.load import load_experiment
from forge.config.schema.build import DataBuild
from forge.serve.engines import TESTED_VLLM
from forge.store.layout import RunPaths
from tests.docs.pages import (
    BESIDE,
    PAGES,
    ROOT,
    Block,
    Command,
    file_name,
    read_blocks,
    read_commands,
)
from tests.e2e.experiments import PROBLEM

COMMANDS = {" ".join(each.forge): each for each in reversed(read_commands()) if each.forge}
"""Commands of forge without repetitions: the first place of each."""
BLOCKS = read_blocks("sh", "python", "toml", "text")
GUIDES = list(dict.fromkeys(block.page for block in BLOCKS if block.language == "sh"))
LOOKS = {
    "compare", "gc", "init", "keys", "logs", "plan", "ps", "rollouts", "runs", "show", "sql",
    "status",
}  # fmt: skip
"""Commands that start no process and change no run: quick."""
LOOKS_AT_DATA = {("data", "prompt"), ("data", "show"), ("data", "from-run")}
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
"""Environment of a shell after `source .venv/bin/activate`."""
FUNCTIONS = ("abs", "asinh", "atan", "cos", "cosh", "erf", "exp", "sigmoid", "sin", "tanh")
"""Two of them are a problem of the reader's clone of KernelBench; 19 of its level 1 is its own."""
LARGEST = "8xH100-80GB"
"""Machine that a marked run is planned for, unless its page plans it for another."""


def parse(arguments: Sequence[str]) -> str:
    """Name of the command that takes these arguments. Raises a UsageError if none does."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("forge", list(arguments))
    while hasattr(command, "commands"):
        left = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, left)
        context = command.make_context(name, rest, parent=context)
    return context.command_path


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_line_of_a_document_is_accepted(line):
    try:
        parse(COMMANDS[line].forge)
    except Exception as error:
        pytest.fail(f"{COMMANDS[line].place}: forge {line}: {error}")


def test_every_command_is_in_a_block_that_is_run_or_marked():
    assert read_blocks("bash", "console", "shell", "zsh") == []
    assert [each.place for each in BLOCKS if re.search(r"^\$ ", each.text, re.MULTILINE)] == []
    for block in BLOCKS:
        assert block.above.count("<!-- not run") == len(block.marks), f"{block.place}: no reason"
        for words, _ in block.marks:
            assert f"\n{words}" in f"\n{block.text}", f"{block.place}: no line {words}"


@pytest.fixture
def here(canned_run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, which is the working directory."""
    folder = canned_run.root.parents[1]
    shutil.copytree(canned_run.root, folder / "runs" / "quickstart-2", symlinks=True)
    for name in ("experiments", "examples"):
        (folder / name).symlink_to(ROOT / name)
    for level, outer in itertools.product((1, 2, 3), FUNCTIONS):
        place = folder / "KernelBench" / "KernelBench" / f"level{level}"
        place.mkdir(parents=True, exist_ok=True)
        for number, inner in enumerate(FUNCTIONS[level:], start=20):
            text = PROBLEM.replace("torch.{}(x)", f"torch.{outer}({level} * torch.{inner}(x))")
            (place / f"{number}_{outer}_{inner}.py").write_text(text, encoding="utf-8")
    relu = folder / "KernelBench" / "KernelBench" / "level1" / "19_ReLU.py"
    relu.write_text(PROBLEM.format("relu"), encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


def write_file(block: Block) -> bool:
    """Writes the file that a block holds: one that it names, or an experiment with a name."""
    experiment = re.match(r'name = "([\w-]+)"', block.text) if block.language == "toml" else None
    name = f"{experiment[1]}.toml" if experiment else file_name(block)
    if name is not None:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(block.text, encoding="utf-8")
    return name is not None


@pytest.mark.parametrize("page", GUIDES)
def test_what_only_looks_works_as_written_and_what_is_marked_is_planned(page, here, capsys):
    blocks = [block for block in BLOCKS if block.page == page]
    for block in blocks:
        is_file = block.language in ("python", "toml") and write_file(block)
        if block.language == "python" and not is_file and "forge.open(" in block.text:
            exec(compile(block.text, block.place, "exec"), {})
        for command in block.commands if block.language == "sh" else ():
            words = command.forge
            if command.reason:
                check_marked(command, blocks)
            elif words and (words[0] in LOOKS or tuple(words[:2]) in LOOKS_AT_DATA):
                code = run_command(words)
                assert code == 0, f"{command.place}: exit {code}: {capsys.readouterr().err}"
            elif command.words[0] == "sqlite3":
                _, path, query = command.words
                with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                    assert database.execute(query).fetchall()


def check_marked(command: Command, blocks: Sequence[Block]) -> None:
    """The files of a command that is not run load, and its run has a plan."""
    words = command.forge
    files = [word for word in words if word.endswith(".toml")]
    sets = [part for at, word in enumerate(words) if word == "--set" for part in words[at : at + 2]]
    for file in files:
        if words[:2] == ["data", "build"]:
            DataBuild.model_validate(tomllib.loads(Path(file).read_text(encoding="utf-8")))
        elif words[0] != "run":
            load_experiment(Path(file), overrides=sets[1::2], is_here=False)
        else:
            plans = [each.forge for block in blocks for each in block.commands]
            named = [
                plan[-1] for plan in plans if plan[:2] == ["plan", file] and "--assume" in plan
            ]
            machine = (*named, LARGEST)[0]
            code = run_command(["plan", file, *sets, "--assume", machine])
            assert code == 0, f"{command.place}: forge plan {file} --assume {machine}: exit {code}"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", GUIDES)
def test_a_page_works_as_written(page, here):
    """Each block in a shell or in Python; after a verdict stands what the page shows."""
    printed, port = "", str(free_port())
    with ExitStack() as servers:
        for block in (block for block in BLOCKS if block.page == page):
            block = replace(block, text=block.text.replace("8200", port))
            commands = [each.text for each in block.commands if not each.reason]
            argv: list[str] = []
            if block.language == "text" and printed:
                assert without_times(block.text) in without_times(printed), block.place
            elif block.language == "sh" and BESIDE in block.above:
                servers.enter_context(serving(here, commands.pop(0), port=port))
            if block.language == "sh" and commands:
                argv = ["bash", "-euc", "\n".join(commands)]
            elif block.language in ("python", "toml") and not write_file(block):
                argv = [sys.executable, "-c", block.text] * (block.language == "python")
            printed = ""
            if argv and not (block.language == "python" and block.marks):
                done = play(here, argv)
                assert done.returncode == 0, f"{block.place}: {done.stdout}{done.stderr}"
                if commands and re.match("forge (judge|problems check) ", commands[-1]):
                    printed = done.stdout


def free_port() -> int:
    """A port in place of the one that the pages name, which another program may have."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def serving(here: Path, command: str, *, port: str) -> Generator[None]:
    """A server of the reader's other terminal, once it has printed its address."""
    child = subprocess.Popen(
        ["bash", "-euc", f"exec {command}"], cwd=here, env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert any(port in line for line in child.stdout), command
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)


def play(here: Path, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """A process of the reader's, which finds the commands of this installation."""
    return subprocess.run(
        argv, cwd=here, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
    )


def without_times(text: str) -> str:
    return re.sub(r" *\d+\.\d+ (?=[mu]?s)", " ", text).strip()


def test_every_extra_that_pip_installs_in_a_document_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    asked = re.findall(r"pip install '(?:dist/)?([\w.-]+?)(?:-\d[\w.-]*)?\[([\w,]+)\]'", text)
    assert len(asked) >= 3
    names = {name.replace("_", "-") for name, _ in asked} - {"."}
    assert names == {project["name"]}
    extras = {extra for _, names in asked for extra in names.split(",")}
    assert extras <= set(project["optional-dependencies"])


def read_other_lines() -> list[tuple[str, list[str]]]:
    """Place and words of each command of another program than forge."""
    return [(each.place, each.words) for each in read_commands() if not each.forge]


def test_the_documented_vllm_is_the_tested_one():
    asked = [words[-1] for _, words in read_other_lines() if words[0] == "vllm-env/bin/pip"]
    assert asked == [f"vllm=={TESTED_VLLM}.*"]


def test_the_body_of_every_request_with_curl_is_a_request_of_the_judge():
    bodies = [words[words.index("-d") + 1] for _, words in read_other_lines() if "-d" in words]
    assert bodies
    for body in bodies:
        JudgeCall.model_validate_json(body)
