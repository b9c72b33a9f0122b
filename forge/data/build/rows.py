"""Input files of a build, and their rows in one normal form of text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.data.pairs.rows import hash_rows, row_files

KEY = "input.path"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """One input file."""

    path: Path
    name: str
    """Path below the input, for people and for the manifest."""
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Its entry in the manifest."""
        return {"name": self.name, "sha256": self.sha256}


def find_row_files(path: Path) -> list[RowFile]:
    """The input files, by path. Raises ConfigError if there is none or one cannot be read."""
    root = path if path.is_dir() else path.parent
    return [
        RowFile(path=file, name=file.relative_to(root).as_posix(), sha256=hash_rows(file, key=KEY))
        for file in row_files(path, key=KEY)
    ]


_INDENT = re.compile(r"^[ \t]*\t[ \t]*", re.MULTILINE)
_SPACES = re.compile(r"^ +\S", re.MULTILINE)
TAB = 4
"""Columns of a tab where only tabs indent."""
PYTHON_TAB = 8
"""Columns of a tab beside spaces, as Python counts them: the meaning of the source stays."""
MAX_DEPTH = 16
"""Maximum nesting of a row that is normalised."""


def normalise_text(text: str) -> str:
    """The text with `\\n` line ends, without byte order mark, indented by spaces."""
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\t" not in text:
        return text
    width = PYTHON_TAB if _SPACES.search(text) else TAB
    return _INDENT.sub(lambda found: found[0].expandtabs(width), text)


def normalise_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with every text in it normalised."""
    return {str(name): _normalise(value, MAX_DEPTH) for name, value in row.items()}


def _normalise(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return normalise_text(value)
    if depth == 0:
        return value
    if isinstance(value, Mapping):
        return {k: _normalise(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_normalise(each, depth - 1) for each in value]
    return value
