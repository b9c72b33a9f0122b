"""Every command line of the documents is accepted by the command line; those that only look at
runs or plans are run, on a finished quickstart. Lines of other programs are checked by kind."""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
import tomllib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from forge.adapters.http.models import JudgeCall
from forge.cli import app, run_command
from forge.serve.engines import TESTED_VLLM
from tests.docs.pages import PAGES, ROOT, file_name, read_blocks, read_commands

if TYPE_CHECKING:
    from forge.store.layout import RunPaths

COMMANDS = {" ".join(words): (place, words) for place, words in reversed([*read_commands()])}
"""Place and arguments of each, without repetitions: the first place."""
LOOKS = {
    "archive", "compare", "export", "gc", "kernels", "keys", "logs", "plan", "ps", "report",
    "rollouts", "runs", "show", "sql", "status",
}  # fmt: skip
"""Commands that start no process and change no run: their lines are run."""
SLOW = {"report", "export", "kernels", "archive"}
MODELS = ("export model",)
"""Commands that load a model: the canned run has no weights."""
FREE = [line for line in COMMANDS if line.split()[0] in LOOKS and not line.startswith(MODELS)]


def parse(arguments: Sequence[str]) -> str:
    """Name of the command that takes these arguments. Raises a UsageError if none does."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("forge", list(arguments))
    while hasattr(command, "commands"):
        left = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, left)
        context = command.make_context(name, rest, parent=context)
    return context.command_path


def test_there_are_command_lines_to_check() -> None:
    assert len(COMMANDS) >= 50
    assert len(FREE) >= 15


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_line_of_a_document_is_accepted(line: str) -> None:
    place, words = COMMANDS[line]
    try:
        parse(words)
    except Exception as error:
        pytest.fail(f"{place}: forge {line}: {error}")


def test_a_wrong_option_or_command_is_not_accepted() -> None:
    for line in ("show quickstart-1 --nonsense", "nonsense", "plan", "data nonsense"):
        with pytest.raises(Exception, match=r"(?i)no such|missing|nonsense"):
            parse(line.split())


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.long if line.split()[0] in SLOW else [])
        for line in FREE
    ],
)
def test_a_command_that_only_looks_works_as_written(
    line: str, canned_run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = canned_run.root.parents[1]
    monkeypatch.chdir(here)
    shutil.copytree(canned_run.root, here / "runs" / "quickstart-2", symlinks=True)
    for folder in ("experiments", "examples"):
        (here / folder).symlink_to(ROOT / folder)
    write_files(here)
    assert run_command(COMMANDS[line][1]) == 0


def write_files(here: Path) -> None:
    """The files that documents show: experiments with a name, and problems."""
    for block in read_blocks("toml"):
        if named := re.match(r'name = "([\w-]+)"', block.text):
            (here / f"{named[1]}.toml").write_text(block.text, encoding="utf-8")
    for block in read_blocks("python"):
        name = file_name(block) or ""
        if name.startswith("problems/"):
            (here / "problems").mkdir(exist_ok=True)
            (here / name).write_text(block.text, encoding="utf-8")


def test_every_extra_that_pip_installs_in_a_document_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    asked = re.findall(r"pip install '(?:dist/)?([\w.-]+?)(?:-\d[\w.-]*)?\[([\w,]+)\]'", text)
    assert len(asked) >= 3
    names = {name.replace("_", "-") for name, _ in asked} - {"."}
    assert names == {project["name"]}
    extras = {extra for _, names in asked for extra in names.split(",")}
    assert extras <= set(project["optional-dependencies"])


OTHERS = {"curl", "export", "git", "make", "pip", "python3", "ray", "sqlite3", "vllm-env/bin/pip"}
"""Programs of the lines that are not forge's."""


def read_other_lines() -> list[tuple[str, list[str]]]:
    """Place and words of each line of a shell block that is not forge's; a `\\` joins lines."""
    found = []
    for block in read_blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"\w+=", words[0]):
                del words[0]
            if words and words[0] != "forge":
                found.append((block.place, words))
    return found


def test_every_other_line_is_of_a_program_that_is_checked_or_foreign() -> None:
    assert {words[0] for _, words in read_other_lines()} == OTHERS


def test_the_documented_vllm_is_the_tested_one() -> None:
    asked = [words[-1] for _, words in read_other_lines() if words[0] == "vllm-env/bin/pip"]
    assert asked == [f"vllm=={TESTED_VLLM}.*"]


def test_every_make_line_has_a_target_and_variables_of_the_makefile() -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [(place, words[1:]) for place, words in read_other_lines() if words[0] == "make"]
    assert len(lines) >= 5
    for place, words in lines:
        for word in words:
            name, is_set, _ = word.partition("=")
            known = f"{name}=" in rules if is_set else re.search(rf"^{name}:", rules, re.MULTILINE)
            assert known, f"{place}: make {word}"


def test_the_body_of_every_request_with_curl_is_a_request_of_the_judge() -> None:
    bodies = [words[words.index("-d") + 1] for _, words in read_other_lines() if "-d" in words]
    assert bodies
    for body in bodies:
        JudgeCall.model_validate_json(body)


def test_every_query_with_sqlite3_gives_rows(
    canned_run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(canned_run.root.parents[1])
    lines = [words[1:] for _, words in read_other_lines() if words[0] == "sqlite3"]
    assert lines
    for path, query in lines:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            assert database.execute(query).fetchall()
