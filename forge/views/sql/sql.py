"""`forge sql RUN "select …"`: any read-only query; without one, the tables and views of the run.

A mistake in the query is one ConfigError line. Called by the command line and the other views; the
functions return data or a renderable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.views.sql.named_queries import QUERIES, NamedQuery
from forge.views.text.numbers import finite
from forge.views.text.terminal import json_text

if TYPE_CHECKING:
    from rich.console import Group as RichGroup

    from forge.store.reader import RowStream, RowTable
    from forge.views.text.fitting import Fitting

PLACE = "forge sql"
MOST_ROWS = 1000
"""Maximum rows of a table for the terminal: a query without LIMIT must not fill the memory."""
LARGEST = 2**63 - 1
"""Largest integer of SQLite."""
_COMMENT = re.compile(r"--\s*(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table or view with the first comment of its SQL."""

    name: str
    kind: str
    comment: str
    columns: tuple[str, ...]


def find_named(name: str) -> NamedQuery:
    """The query of this name. Raises ConfigError, which lists all names, if there is none."""
    if name not in QUERIES:
        raise ConfigError(
            f"{PLACE} --named {name}: no such query; there are {', '.join(sorted(QUERIES))}"
        )
    return QUERIES[name]


def named_json() -> list[dict[str, Any]]:
    """All named queries as JSON: name, question, parameters, SQL."""
    return [
        {"name": name, "question": each.question, "params": dict(each.params), "sql": each.sql}
        for name, each in QUERIES.items()
    ]


def render_named() -> Fitting:
    """The list shown by `forge sql --list`."""
    from forge.views.text.fitting import Fitting

    rows = tuple(
        (name, each.question, "\n".join(f"{param}: {what}" for param, what in each.params.items()))
        for name, each in QUERIES.items()
    )
    return Fitting(("name", "question", "parameters"), rows)


def list_relations(ask: Callable[[str], Iterable[tuple[Any, ...]]]) -> list[Relation]:
    """Views, then tables, with their comments; those that only serve the views are left out.

    Not sqlite-utils' `tables` and `columns`: they omit generated columns such as `turns.turn_id`.

    Args:
        ask: gives the rows of a query.
    """
    rows = ask(
        "SELECT name, type, sql FROM main.sqlite_master WHERE type IN ('view', 'table') "
        "AND NOT (name GLOB 'sqlite_*' OR name GLOB 'rolled_*' OR name GLOB 'open_*' OR "
        "name GLOB 'live_*') ORDER BY type DESC, name"
    )
    return [
        Relation(
            name=name,
            kind=kind,
            comment=comment[1] if (comment := _COMMENT.search(sql)) else "",
            columns=tuple(row[1] for row in ask(f'PRAGMA main.table_xinfo("{name}")')),
        )
        for name, kind, sql in rows
    ]


def json_parts(found: RowTable | RowStream) -> Iterator[str]:
    """A JSON list in parts, a line per row: an object with bytes as hex, and numbers that are not
    finite as null."""
    start, names = "[", _unique_names(found.columns)
    for row in found.rows:
        values = map(_json_value, row)
        yield f"{start}{json_text(dict(zip(names, values, strict=True)))}"
        start = ",\n"
    yield "[]\n" if start == "[" else "]\n"


def _unique_names(columns: Sequence[str]) -> list[str]:
    """Unique keys: the second `turn` of a join is `turn:1`, as SQLite names it in a subquery."""
    out: dict[str, None] = {}
    for column in columns:
        name, number = column, 0
        while name in out:
            number += 1
            name = f"{column}:{number}"
        out[name] = None
    return list(out)


def render_found(found: RowTable | RowStream, *, most: int = MOST_ROWS) -> RichGroup:
    """The first rows, fitted to the terminal, and a note if there are more."""
    from rich.console import Group as RichGroup
    from rich.text import Text

    from forge.views.text.fitting import Fitting

    rows = iter(found.rows)
    table = Fitting(found.columns, islice(rows, most))
    if next(rows, None) is None:
        return RichGroup(table)
    note = f"the first {most:,} rows; --json prints all"
    return RichGroup(table, Text(note, style="yellow"))


def render_relations(relations: list[Relation]) -> Fitting:
    """The list shown by `forge sql RUN`."""
    from forge.views.text.fitting import Fitting

    return Fitting(("name", "content"), ((each.name, each.comment) for each in relations))


def _json_value(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else finite(value)
