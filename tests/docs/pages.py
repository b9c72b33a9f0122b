"""The documents, their fenced blocks, the commands in these, and the marks of what is not run.

A comment above a block says what a reader without a GPU, other machines and minutes cannot run:
`<!-- not run: REASON -->` the whole block, or, with words in backticks before the colon, its lines
that begin so. `<!-- runs beside what follows -->` is a server, which ends with the page.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
FENCED = re.compile(r"((?:<!-- [^\n]* -->\n)*)^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- not run(?: `([^`]+)`)?: (\S.+?) -->\n")
BESIDE = "<!-- runs beside what follows -->\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a shell block, with its continued lines."""

    place: str
    text: str
    reason: str
    """Why a reader of a bare installation cannot run it; empty for one that is run."""

    @property
    def forge(self) -> list[str]:
        """Arguments of `forge`, after any variables; empty for another program."""
        found = re.match(r"(?:\w+=\S+ )*forge (.*)", self.text, re.DOTALL)
        return shlex.split(found[1], comments=True) if found else []

    @property
    def words(self) -> list[str]:
        """Words of a command of any program, without variables before it."""
        words = shlex.split(self.text, comments=True)
        while words and re.match(r"\w+=", words[0]):
            del words[0]
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a document."""

    page: str
    line: int
    language: str
    text: str
    above: str
    """Comments above it."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def marks(self) -> list[tuple[str, str]]:
        """Beginning of the marked lines, empty for all, and the reason."""
        return MARK.findall(self.above)

    @property
    def commands(self) -> list[Command]:
        """Its commands, if it is of a shell."""
        found, line = list[Command](), self.line
        for text in re.split(r"(?<!\\)\n", self.text.rstrip("\n")):
            line += 1
            reason = next((why for words, why in self.marks if text.startswith(words)), "")
            if text and not text.startswith("#"):
                joined = text.replace("\\\n", " ")
                found.append(Command(place=f"{self.page}:{line}", text=joined, reason=reason))
            line += text.count("\n")
        return found


def read_blocks(*languages: str) -> list[Block]:
    """Every block in one of the languages, in the order of the documents."""
    found = [
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, match.start(2)) + 1,
            language=match[2],
            text=match[3],
            above=match[1],
        )
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for match in FENCED.finditer(text)
    ]
    return [block for block in found if block.language in languages]


def read_commands() -> list[Command]:
    """Every command of the shell blocks."""
    return [command for block in read_blocks("sh") for command in block.commands]


def file_name(block: Block) -> str | None:
    """Name of the file that a block holds: its first line is then `# NAME.py`."""
    named = re.match(r"# ([\w./-]+\.\w+)(?:\n|: )", block.text)
    return named[1] if named else None
