"""Queries for a report. A query that fails costs its own part of the report only."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from forge.views.text.numbers import finite
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from forge.store.read_only import Params
    from forge.store.reader import RunReader

_LONGEST_LABEL = 48
"""Maximum characters of a label in a chart."""


class Asker:
    """One run's reader, with a list of the parts that could not be read.

    A half-copied database is incomplete: a query that fails has no rows and adds a line to
    `problems`.
    """

    def __init__(self, reader: RunReader) -> None:
        self.reader = reader
        self.problems: list[str] = []

    def rows(self, part: str, sql: str, params: Params = ()) -> list[dict[str, Any]]:
        """The rows; none if the query fails. `part` names what the report then lacks."""
        try:
            rows = self.reader.rows(sql, params)
            return [{name: finite(value) for name, value in row.items()} for row in rows]
        except sqlite3.Error as error:
            line = f"{part}: not readable in this run: {error}"
            if line not in self.problems:
                self.problems.append(line)
            return []

    def one(self, part: str, sql: str, params: Params = ()) -> dict[str, Any]:
        """The first row; empty if there is none."""
        found = self.rows(part, sql, params)
        return found[0] if found else {}


def label(text: object) -> str:
    """A stored text as a chart label: printable, short, and free of what matplotlib hides (a
    leading underscore) or XML forbids.
    """
    shown = "".join(
        "\ufffd" if ord(character) & 0xFFFE == 0xFFFE else character
        for character in printable(str(text)).replace("\n", "␊").replace("\t", " ")
    )
    if len(shown) > _LONGEST_LABEL:
        shown = f"{shown[: _LONGEST_LABEL - 1]}…"
    return f" {shown}" if shown.startswith("_") else shown
