"""What the readers of SFT rows share: the two ways a row can fail, and its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class BadRow(ValueError):
    """A row that is not in the format; its words say what was found and what is allowed."""


class Unfit(ValueError):
    """A row in the format that must not be trained on; its words are the reason, for a count."""


def text_of(row: Mapping[str, Any], name: str) -> str:
    """A text of a row. Raises BadRow where it is missing or something else."""
    found = row.get(name)
    if not isinstance(found, str):
        has = "nothing" if found is None else type(found).__name__
        raise BadRow(f"{name}: found {has}; a text (columns here: {', '.join(map(str, row))})")
    return found
