"""The documents, their fenced blocks, and the command lines in these."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a document."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(*languages: str) -> list[Block]:
    """Every block in one of the languages, in the order of the documents."""
    fenced = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    found = [
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, match.start()) + 1,
            language=match[1],
            text=match[2],
        )
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for match in fenced.finditer(text)
    ]
    return [block for block in found if block.language in languages]


def read_commands() -> Iterator[tuple[str, list[str]]]:
    """Place and arguments of each `forge …` line of a shell block; variables before it are left
    out."""
    for block in read_blocks("sh"):
        for number, line in enumerate(block.text.splitlines(), start=block.line + 1):
            if found := re.match(r"(?:\w+=\S+ )*forge (.*)", line):
                yield f"{block.page}:{number}", shlex.split(found[1], comments=True)


def file_name(block: Block) -> str | None:
    """Name of the file that a block holds: its first line is then `# NAME.py`."""
    named = re.match(r"# ([\w./-]+\.\w+)\n", block.text)
    return named[1] if named else None
