"""Asking a run for the parts of its report, each for itself: what one lacks does not lose the
others.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from forge.views.text.numbers import finite
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from forge.store.reader import Params, RunReader

_LONGEST_LABEL = 48
"""Characters of a name in a picture."""


class Asker:
    """One run's reader, and what could not be answered.

    A run of an older forge has no view for some parts, and a half-copied database ends somewhere:
    such a question has no rows, and a line in `problems`.
    """

    def __init__(self, reader: RunReader) -> None:
        self.reader = reader
        self.problems: list[str] = []

    def rows(self, part: str, sql: str, params: Params = ()) -> list[dict[str, Any]]:
        """The rows; none where the run cannot answer. `part` is what the reader will miss."""
        try:
            rows = self.reader.rows(sql, params)
            return [{name: finite(value) for name, value in row.items()} for row in rows]
        except sqlite3.Error as error:
            self.problems.append(f"{part}: not readable in this run: {error}")
            return []

    def one(self, part: str, sql: str, params: Params = ()) -> dict[str, Any]:
        """The first row; an empty one where there is none."""
        found = self.rows(part, sql, params)
        return found[0] if found else {}


def label(text: object) -> str:
    """A run's word as a picture's label: printable, short, and not of those that matplotlib hides
    or XML refuses.
    """
    shown = "".join(
        "\ufffd" if ord(character) & 0xFFFE == 0xFFFE else character
        for character in printable(str(text)).replace("\n", "␊").replace("\t", " ")
    )
    if len(shown) > _LONGEST_LABEL:
        shown = f"{shown[: _LONGEST_LABEL - 1]}…"
    return f" {shown}" if shown.startswith("_") else shown
