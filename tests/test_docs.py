"""Commands, options, queries and files in the documents exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from forge.store.schema.migrations import RUN_MIGRATIONS, migrate
from forge.store.schema.run_views import VIEWS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "docs/adapters.md", "docs/cluster.md")
GROUPS = ("problems", "data", "kernels", "cluster")
"""Commands with two parts."""
README = (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_the_readme_has_commands_and_queries_to_check() -> None:
    assert len(find_commands(README)) >= 8
    assert len(find_blocks(README, language="sql")) >= 3


@pytest.mark.parametrize("query", find_blocks(README, language="sql"))
def test_every_query_of_the_readme_runs_in_stock_sqlite3(query: str, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path=path, migrations=RUN_MIGRATIONS, views=VIEWS)
        connection.execute(query).fetchall()
    if program := shutil.which("sqlite3"):
        argv = [program, "-bail", str(path), query]
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("name", DOCS)
def test_every_file_that_a_document_names_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"`((?:forge|tui|experiments|tests|bench)/[\w./-]*)`", text)
    named += re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    absent = [path for path in named if not (ROOT / path).exists()]
    assert absent == []


def test_the_readme_names_every_folder_of_forge() -> None:
    folders = [path.parent for path in (ROOT / "forge").glob("*/__init__.py")]
    names = [folder.name for folder in folders if not folder.is_symlink()]
    absent = [name for name in names if f"forge/{name}/" not in README]
    assert absent == []


def test_the_notes_for_agents_stay_under_60_lines() -> None:
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) < 60


def test_every_make_target_that_a_document_names_exists() -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in DOCS:
        for target in re.findall(r"`make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8")):
            assert re.search(rf"^{target}:", rules, flags=re.MULTILINE), f"{name}: make {target}"
