"""Names in the documents exist: commands, options, files, error messages; the numbers of cheats,
attacks and honest kernels are those of the zoo.
"""

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from forge.cli import app
from tests.docs.pages import PAGES, ROOT, read_blocks
from tests.zoo.animals import FOLDER, load

DOCS = tuple(str(page.relative_to(ROOT)) for page in PAGES)
FOLDERS = ("docs", "bench", "examples", "experiments", "containers")
LINKING = sorted(
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *(p for name in FOLDERS for p in (ROOT / name).rglob("*.md")))
)
GROUPS = ("problems", "data", "kernels", "cluster")
"""Commands with two parts."""


def find_commands(text: str) -> set[tuple[str, frozenset[str]]]:
    """`forge <command>` with its long options, from inline code."""
    commands = set()
    for line in re.findall(r"`(forge [^`\n]+)`", text):
        words = shlex.split(line.replace("…", ""))[1:]
        options = frozenset(word.partition("=")[0] for word in words if word.startswith("--"))
        name = " ".join(words[: 2 if words[0] in GROUPS else 1])
        name = name if re.fullmatch(r"[a-z][a-z -]*", name) else ""
        commands.add((name, options))
    return commands


@cache
def known() -> dict[str, set[str]]:
    """Options of every command, hidden ones too; those of `forge` itself have an empty name."""
    found: dict[str, set[str]] = {}
    waiting: list[tuple[str, Any]] = [("", get_command(app))]
    for name, command in waiting:
        found[name] = {option for parameter in command.params for option in parameter.opts}
        inner = getattr(command, "commands", {})
        waiting += [(f"{name} {part}".strip(), each) for part, each in inner.items()]
    return found


@pytest.mark.parametrize("name", DOCS)
def test_every_command_and_option_that_a_document_names_exists(name):
    for command, options in find_commands((ROOT / name).read_text(encoding="utf-8")):
        assert command in known(), f"{name}: there is no forge {command}"
        absent = options - known()[command] - {"--help"}
        assert not absent, f"{name}: forge {command} has no {sorted(absent)}"


@pytest.mark.parametrize("name", DOCS)
def test_every_file_that_a_document_names_exists(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"`((?:forge|tui|experiments|tests|bench)/[\w./-]*)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", LINKING)
def test_every_link_of_a_document_leads_somewhere_before_anything_is_generated(name):
    page = ROOT / name
    linked = re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text("utf-8"))
    absent = [
        f"{path}#{anchor}"
        for path, anchor in linked
        for target in [page.parent / path if path else page]
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert absent == []


@cache
def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and MkDocs make them, and those that it names."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([\w-]+)">', text))


def test_the_readme_has_at_most_8_kB_and_two_commands_to_begin_with():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.encode()) <= 8000
    begin = next(block for block in read_blocks("sh") if block.page == "README.md").commands
    assert [each.words[:2] for each in begin] == [["make", "quickstart"], ["make", "test"]]


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not re.search(rf"[-:] {page}$", listed, re.MULTILINE)] == []


def test_the_notes_for_contributors_name_every_folder_of_forge():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = [path.parent for path in (ROOT / "forge").glob("*/__init__.py")]
    names = [folder.name for folder in folders if not folder.is_symlink()]
    absent = [name for name in names if f"forge/{name}/" not in text]
    assert absent == []


def test_the_notes_for_agents_stay_under_60_lines():
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) < 60


def test_every_make_target_that_a_document_names_exists():
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in DOCS:
        for target in re.findall(r"`make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8")):
            assert re.search(rf"^{target}:", rules, flags=re.MULTILINE), f"{name}: make {target}"


PAGE = (ROOT / "docs/how-to/troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^`([^`\n]+)`\n:   ", PAGE, flags=re.MULTILINE)
"""Each message; … stands for any text."""
SHORTEST = 4
"""Characters that a fixed part of a message needs to say something."""


@cache
def read_sources() -> list[str]:
    """Text of each source file, its neighbouring string literals joined."""
    paths = [path for path in (ROOT / "forge").rglob("*.py") if "judge/trial" not in str(path)]
    joint = re.compile(r"""["']\s*\n\s*f?["']""")
    return [joint.sub("", path.read_text(encoding="utf-8")) for path in paths]


def fixed_parts(message: str) -> list[str]:
    parts = [part.strip(" (;:,.)") for part in message.split("…")]
    return [part for part in parts if len(part) >= SHORTEST]


def is_in_sources(message: str) -> bool:
    """True if one file has all fixed parts in their order."""
    pattern = re.compile(".*?".join(map(re.escape, fixed_parts(message))), re.DOTALL)
    return any(pattern.search(text) for text in read_sources())


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_is_explained_exists(message):
    assert fixed_parts(message)
    assert is_in_sources(message)


NUM_CHEATS = len(load("cheats"))
ATTACKS = {path.stem: len(json.loads(path.read_text())) for path in FOLDER.glob("*_attacks*.json")}


@pytest.mark.parametrize("name", ["README.md", "docs/results/index.md"])
def test_a_document_counts_cheats_and_attacks(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(
        r"[Oo]f (\d+) cheats and (\d+) attacks .* (\w+) are (?:accepted|judged)", text
    )
    assert found == [(str(NUM_CHEATS), str(sum(ATTACKS.values())), "three")]
    assert ATTACKS["accepted_attacks"] == 3


def test_the_results_of_the_judge_count_cheats_and_honest_kernels():
    text = (ROOT / "docs/results/judge.md").read_text(encoding="utf-8")
    num_honest = len(load("honest"))
    assert f"| cheats of the zoo judged correct | 0 of {NUM_CHEATS} |" in text
    assert f"| honest kernels of the zoo | {num_honest} of {num_honest} |" in text
