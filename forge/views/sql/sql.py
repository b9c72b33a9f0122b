"""`forge sql RUN "select …"`: any read-only query; without one, the tables and views of the run.

A mistake in the query is one ConfigError line. Called by the command line and the other views; the
functions return data or a renderable.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.store.read_only import Params, RowStream, RowTable, explain_sql
from forge.views.sql.named_queries import QUERIES, NamedQuery
from forge.views.text.numbers import finite
from forge.views.text.terminal import json_text, printable

if TYPE_CHECKING:
    from rich.console import Group as RichGroup

    from forge.store.read_only import SqlReader
    from forge.views.text.fitting import Fitting

PLACE = "forge sql"
MOST_ROWS = 1000
"""Maximum rows of a table for the terminal: a query without LIMIT must not fill the memory."""
PART_CHARACTERS = 64_000
"""CSV is written in parts of about this size."""
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


def run_sql(reader: SqlReader, query: str, params: Params = ()) -> RowTable:
    """Runs one statement. Raises ConfigError with SQLite's message for a mistake."""
    with explain_sql(PLACE):
        return reader.query(query, params)


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
    return Fitting(RowTable(columns=("name", "question", "parameters"), rows=rows))


def list_relations(reader: SqlReader) -> list[Relation]:
    """Views, then tables, with their comments; those that only serve the views are left out.

    Not sqlite-utils' `tables` and `columns`: they cover one schema, and omit generated columns such
    as `turns.turn_id`.
    """
    schema = reader.schema
    rows = reader.rows(
        f"SELECT name, type, sql FROM {schema}.sqlite_master WHERE type IN ('view', 'table') "
        "AND NOT (name GLOB 'sqlite_*' OR name GLOB 'rolled_*' OR name GLOB 'open_*' OR "
        "name GLOB 'live_*') ORDER BY type DESC, name"
    )
    return [
        Relation(
            name=row["name"],
            kind=row["type"],
            comment=comment[1] if (comment := _COMMENT.search(row["sql"])) else "",
            columns=tuple(
                c["name"] for c in reader.rows(f'PRAGMA {schema}.table_xinfo("{row["name"]}")')
            ),
        )
        for row in rows
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


def csv_parts(found: RowTable | RowStream, *, is_shown: bool = False) -> Iterator[str]:
    """CSV in parts, with a header line, as in RFC 4180 but with Unix line ends; texts are made
    printable if `is_shown` on a terminal.
    """
    lines = [_csv_line(found.columns)]
    size = 0
    for row in found.rows:
        values = map(_json_value, row)
        line = _csv_line([printable(v) if is_shown and isinstance(v, str) else v for v in values])
        lines.append(line)
        size += len(line)
        if size > PART_CHARACTERS:
            yield "".join(lines)
            lines, size = [], 0
    yield "".join(lines)


def _csv_line(values: Sequence[Any]) -> str:
    """One record. The csv module quotes a lone carriage return only if lines end in CR LF."""
    out = io.StringIO()
    csv.writer(out).writerow(values)
    return f"{out.getvalue()[:-2]}\n"


def render_found(found: RowTable | RowStream, *, most: int = MOST_ROWS) -> RichGroup:
    """The first rows, fitted to the terminal, and a note if there are more."""
    from rich.console import Group as RichGroup
    from rich.text import Text

    from forge.views.text.fitting import Fitting

    rows = iter(found.rows)
    table = Fitting(RowTable(columns=found.columns, rows=tuple(islice(rows, most))))
    if next(rows, None) is None:
        return RichGroup(table)
    note = f"the first {most:,} rows; --csv and --json print all"
    return RichGroup(table, Text(note, style="yellow"))


def render_relations(relations: list[Relation]) -> Fitting:
    """The list shown by `forge sql RUN`."""
    from forge.views.text.fitting import Fitting

    rows = tuple((each.name, each.comment) for each in relations)
    return Fitting(RowTable(columns=("name", "content"), rows=rows))


def relations_json(relations: list[Relation]) -> str:
    """The same list as JSON, with columns."""
    return json_text([asdict(relation) for relation in relations])


def _json_value(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else finite(value)
