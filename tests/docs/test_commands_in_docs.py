"""Every command line of the documents is accepted by the command line; those that only look at
runs or plans are run, on a finished quickstart."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from forge.cli import app, run_command
from tests.docs.pages import PAGES, ROOT, file_name, read_blocks, read_commands

if TYPE_CHECKING:
    from forge.store.layout import RunPaths

COMMANDS = {" ".join(words): (place, words) for place, words in reversed([*read_commands()])}
"""Place and arguments of each, without repetitions: the first place."""
LOOKS = {
    "archive", "compare", "export", "gc", "kernels", "keys", "logs", "plan", "ps", "questions",
    "report", "rollouts", "runs", "show", "sql", "status",
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
    """The files that documents show: experiments with a name, and problems, of which a run needs
    some dozens."""
    for block in read_blocks("toml"):
        if named := re.match(r'name = "([\w-]+)"', block.text):
            (here / f"{named[1]}.toml").write_text(block.text, encoding="utf-8")
    for block in read_blocks("python"):
        name = file_name(block) or ""
        if name.startswith("problems/"):
            (here / "problems").mkdir(exist_ok=True)
            for size in range(1000, 1040):
                path = here / "problems" / f"{size}_{Path(name).name}"
                path.write_text(block.text.replace("1000", str(size)), encoding="utf-8")


def test_every_extra_that_pip_installs_in_a_document_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    asked = re.findall(r"pip install '(?:dist/)?([\w.-]+?)(?:-\d[\w.-]*)?\[([\w,]+)\]'", text)
    assert len(asked) >= 3
    names = {name.replace("_", "-") for name, _ in asked} - {"."}
    assert names == {project["name"]}
    extras = {extra for _, names in asked for extra in names.split(",")}
    assert extras <= set(project["optional-dependencies"])
