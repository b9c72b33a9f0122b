"""Texts of a row in one form: line ends, marks, tabs at the start of lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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


def is_unicode(text: str) -> bool:
    """False for a text with half of a surrogate pair, which JSON allows and no file can store."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
