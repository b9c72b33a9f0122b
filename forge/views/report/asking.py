"""Queries for a report, and the labels of its charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.views.text.numbers import finite
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from forge.store.read_only import Params
    from forge.store.reader import RunReader

_LONGEST_LABEL = 48
"""Maximum characters of a label in a chart."""


def ask(reader: RunReader, sql: str, params: Params = ()) -> list[dict[str, Any]]:
    """The rows; a number that is not finite is None."""
    rows = reader.rows(sql, params)
    return [{name: finite(value) for name, value in row.items()} for row in rows]


def ask_one(reader: RunReader, sql: str) -> dict[str, Any]:
    """The first row; empty if there is none."""
    return next(iter(ask(reader, sql)), {})


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
