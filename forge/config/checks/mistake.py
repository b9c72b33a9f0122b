"""One mistake in an experiment, without its place: the key, what was found, what is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.config.schema import KeyPath, TomlValue

LONGEST_VALUE = 60
"""Characters of a found value that a message shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing to fix."""

    path: KeyPath
    text: str
    """`found 0; an integer, 1 or more`."""
    is_about_here: bool = False
    """True if a file or variable is missing on this machine; another one may have it."""


def show(value: TomlValue | PurePath | None) -> str:
    """A value as TOML writes it, cut to a length that fits a line."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str | PurePath):
        text = f'"{value}"'
    elif isinstance(value, dict):
        text = "a table"
    elif isinstance(value, list):
        text = f"[{', '.join(show(item) for item in value)}]"
    elif isinstance(value, datetime | date | time):
        text = f"the {'date' if isinstance(value, date) else 'time'} {value}"
    else:
        text = str(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def mistake(text: str, *path: str | int) -> Mistake:
    """A mistake about the key at `path`."""
    return Mistake(path=path, text=text)


def absent(text: str, *path: str | int) -> Mistake:
    """A mistake about a file or variable that is missing on this machine."""
    return Mistake(path=path, text=text, is_about_here=True)
