"""Sources and documents avoid the worst idioms (CONTRIBUTING.md, Words)."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES

ROOT = Path(__file__).parents[1]
HEADLESS = re.compile(r"(Of|What|Whether|Who|Whose|Whom|Whoever|That|Those|Where|When) [a-z]")
"""First words of a docstring that has no subject."""
IDIOM = re.compile(
    r"\b(told|tells if|whom|dear|mends?|mended|lets? go|let go of|others each|came to nothing"
    r"|no word of|what (mends|came|became)|(stands?|stood) in the way|spoken? against|thereof"
    r"|whoever)\b",
    re.IGNORECASE,
)
SUSPECT = re.compile(rf"""["']\s*{HEADLESS.pattern}|{IDIOM.pattern}""", re.IGNORECASE)
"""In the text of every file with a fault. To parse and tokenize a file takes 50 times as long."""
BETWEEN = re.compile(r"""["']\s*\n\s*f?["']""")
"""Between two parts of one string."""
DOCUMENTS = tuple(str(page.relative_to(ROOT)) for page in PAGES)


def sources() -> list[Path]:
    folders = ("forge", "tui", "tests", "docs")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if path != Path(__file__)]


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """String statements: docstrings of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield node.lineno, text.strip()


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """String constants with a space: messages and parts of f-strings, not stored names."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() as text) if " " in text:
                yield node.lineno, text


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def found_idioms(path: Path) -> list[str]:
    """A line for each docstring without a subject, and each idiom in a string or comment."""
    text = path.read_text(encoding="utf-8")
    if not SUSPECT.search(BETWEEN.sub("", text)):
        return []
    tree = ast.parse(text)
    headless = [(line, doc) for line, doc in docstrings(tree) if HEADLESS.match(doc)]
    idiom = [(n, t) for n, t in [*strings(tree), *comments(text)] if IDIOM.search(t)]
    where = path.relative_to(ROOT)
    return sorted({f"{where}:{line}: {said.splitlines()[0]}" for line, said in headless + idiom})


def test_sources_are_in_plain_english():
    """One test for all files: a test for each costs more time than its reading."""
    assert [line for path in sources() for line in found_idioms(path)] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_in_plain_english(name):
    sections = (ROOT / name).read_text(encoding="utf-8").split("\n## ")
    lines = [line for part in sections if not part.startswith("Words") for line in part.split("\n")]
    assert [line for line in lines if IDIOM.search(line)] == []


@pytest.mark.parametrize(
    "bad", ['"""What a run is told."""', "x = 1  # whom it serves", 'f"{n} others each time"']
)
def test_the_idiom_is_recognised(bad, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_words.ROOT", tmp_path)
    path = tmp_path / "x.py"
    path.write_text(f"n = 1\n{bad}\n")
    assert len(found_idioms(path)) == 1
