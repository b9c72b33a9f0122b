"""`forge sql RUN "select …"`: any question, read-only; without one, what there is to ask.

A mistake in the query is one ConfigError line. Called by the CLI; the functions return data or a
renderable.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.store.reader import Params, RunReader, Table, explain_sql
from forge.views.named_queries import QUERIES
from forge.views.terminal import printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_COMMENT = re.compile(r"--\s*(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table or view with the comment it was made with."""

    name: str
    kind: str
    comment: str
    columns: tuple[str, ...]


def run_sql(reader: RunReader, query: str, params: Params = ()) -> Table:
    """Runs one statement. Raises ConfigError with SQLite's words on a mistake."""
    with explain_sql("forge sql"):
        return reader.query(query, params)


def run_named(reader: RunReader, name: str) -> Table:
    """Runs one of `named_queries.QUERIES`. Raises ConfigError naming them all."""
    if name not in QUERIES:
        raise ConfigError(
            f"forge sql --named {name}: no such query; there are {', '.join(sorted(QUERIES))}"
        )
    return run_sql(reader, QUERIES[name].sql)


def list_relations(reader: RunReader) -> list[Relation]:
    """Views first, then tables; the comments come out of the schema itself."""
    rows = reader.rows(
        "SELECT name, type, sql FROM main.sqlite_master WHERE type IN ('view', 'table') AND name "
        "NOT LIKE 'sqlite_%' "
        "ORDER BY type DESC, name"
    )
    return [
        Relation(
            name=row["name"],
            kind=row["type"],
            comment=comment[1] if (comment := _COMMENT.search(row["sql"])) else "",
            columns=tuple(
                c["name"] for c in reader.rows(f'PRAGMA main.table_xinfo("{row["name"]}")')
            ),
        )
        for row in rows
    ]


def to_json(table: Table) -> str:
    """A JSON list with an object a row; bytes as hex."""
    rows = [dict(zip(table.columns, map(_json_value, row), strict=True)) for row in table.rows]
    return json.dumps(rows, ensure_ascii=False)


def to_csv(table: Table) -> str:
    """RFC 4180 with a header line."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(table.columns)
    writer.writerows([_json_value(value) for value in row] for row in table.rows)
    return out.getvalue()


def render_table(table: Table) -> RichTable:
    """For the terminal; texts are made printable."""
    from rich.table import Table as RichTable
    from rich.text import Text

    out = RichTable(show_edge=False, header_style="bold")
    for column in table.columns:
        out.add_column(printable(column), overflow="fold")
    for row in table.rows:
        out.add_row(*(Text(_cell(value)) for value in row))
    return out


def render_relations(relations: list[Relation]) -> RichTable:
    """The list that `forge sql RUN` shows."""
    table = Table(
        columns=("name", "what it holds"), rows=tuple((r.name, r.comment) for r in relations)
    )
    return render_table(table)


def relations_json(relations: list[Relation]) -> str:
    """The same list for programs, with columns."""
    return json.dumps(
        [
            {"name": r.name, "kind": r.kind, "comment": r.comment, "columns": r.columns}
            for r in relations
        ],
        ensure_ascii=False,
    )


def _json_value(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return printable(str(value))
