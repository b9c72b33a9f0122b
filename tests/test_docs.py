"""Commands, options, queries and files in the documents exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from docs.generate.pages import PAGES as GENERATED
from tests.docs.pages import PAGES, ROOT

DOCS = tuple(str(page.relative_to(ROOT)) for page in PAGES)
GROUPS = ("problems", "data", "kernels", "cluster")
"""Commands with two parts."""


def find_blocks(text: str, *, language: str) -> list[str]:
    """Bodies of the fenced blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def find_commands(text: str) -> set[tuple[str, frozenset[str]]]:
    """`forge <command>` with its long options, from inline code and shell blocks."""
    lines = re.findall(r"`(forge [^`\n]+)`", text)
    for block in find_blocks(text, language="sh"):
        lines += re.findall(r"^(?:\.venv/bin/)?(forge [^#\n]*)", block, flags=re.MULTILINE)
    commands = set()
    for line in lines:
        words = shlex.split(line.replace("…", ""))[1:]
        options = frozenset(word.partition("=")[0] for word in words if word.startswith("--"))
        name = " ".join(words[: 2 if words[0] in GROUPS else 1])
        name = name if re.fullmatch(r"[a-z -]+", name) else ""
        commands.add((name, options))
    return commands


HELPS = """
import contextlib, io, json, sys
from forge.cli import run_command
helps = {}
for command in json.loads(sys.argv[1]):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run_command([*command.split(), "--help"])
    helps[command] = printed.getvalue() if code == 0 else None
print(json.dumps(helps))
"""


@cache
def read_helps() -> dict[str, str | None]:
    """Output of `forge COMMAND --help` of every named command, without wrapping or colours; None
    if there is no such command."""
    named = {c for doc in DOCS for c, _ in find_commands((ROOT / doc).read_text(encoding="utf-8"))}
    ran = subprocess.run(
        [sys.executable, "-c", HELPS, json.dumps(sorted(named))],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(ran.stdout)


@pytest.mark.parametrize("name", DOCS)
def test_every_command_and_option_that_a_document_names_exists(name: str) -> None:
    for command, options in find_commands((ROOT / name).read_text(encoding="utf-8")):
        helped = read_helps()[command]
        assert helped is not None, f"{name}: there is no forge {command}"
        absent = {option for option in options if option not in helped}
        assert not absent, f"{name}: forge {command} has no {sorted(absent)}"


def test_the_documents_name_commands_to_check() -> None:
    assert len(read_helps()) >= 25


def is_generated(place: Path) -> bool:
    """True for a page that `make docs` makes from the code; MkDocs checks the anchors."""
    return str(place.resolve().relative_to(ROOT / "docs")) in GENERATED


@pytest.mark.parametrize("name", DOCS)
def test_every_file_that_a_document_names_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"`((?:forge|tui|experiments|tests|bench)/[\w./-]*)`", text)
    absent = [path for path in named if not (ROOT / path).exists()]
    linked = re.findall(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)", text)
    places = [(ROOT / name).parent / path for path in linked]
    absent += [str(place) for place in places if not (place.exists() or is_generated(place))]
    assert absent == []


def test_the_readme_has_at_most_8_kB_and_two_commands_to_begin_with() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.encode()) <= 8000
    begin = find_blocks(text, language="sh")[0].splitlines()
    assert [line.split()[:2] for line in begin] == [["make", "quickstart"], ["make", "test"]]


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not re.search(rf"[-:] {page}$", listed, re.MULTILINE)] == []


def test_the_notes_for_contributors_name_every_folder_of_forge() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = [path.parent for path in (ROOT / "forge").glob("*/__init__.py")]
    names = [folder.name for folder in folders if not folder.is_symlink()]
    absent = [name for name in names if f"forge/{name}/" not in text]
    assert absent == []


def test_the_notes_for_agents_stay_under_60_lines() -> None:
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) < 60


def test_every_make_target_that_a_document_names_exists() -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in DOCS:
        for target in re.findall(r"`make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8")):
            assert re.search(rf"^{target}:", rules, flags=re.MULTILINE), f"{name}: make {target}"
