"""Shared by the readers of SFT rows: the errors of a row, and access to its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class BadRow(ValueError):
    """A row that does not match the format; the message says what was found and what is allowed."""


class Unfit(ValueError):
    """A row that matches the format but must not be trained on; the message is the reason."""


def text_of(row: Mapping[str, Any], name: str) -> str:
    """A text field of a row. Raises BadRow if it is missing or no text."""
    found = row.get(name)
    if not isinstance(found, str):
        has = "nothing" if found is None else type(found).__name__
        raise BadRow(f"{name}: found {has}; a text (columns here: {', '.join(map(str, row))})")
    return found
