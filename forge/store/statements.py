"""Statements on a read-only connection: results, Ctrl-C, damage, refused pragmas.

`SqlReader` is the base of the readers of one run (`store.reader`) and of several
(`views.sql.several`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from forge.errors import ConfigError, MachineError
from forge.store.opening import DAMAGED, is_damage

Params = Sequence[Any] | Mapping[str, Any]

LOOKING_PRAGMAS = frozenset(
    {
        *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"),
        "foreign_key_list",
    }
)
"""Pragmas that take an argument and change nothing."""

INTERRUPT_STEPS = 100_000
"""SQLite instructions between two checks for Ctrl-C: about a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """Columns and rows, of a query or made for display."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStream:
    """Columns and rows of a query, fetched one at a time: the result may exceed memory."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


class SqlReader:
    """A read-only connection. Close it, or use it in a `with`."""

    def __init__(self, connection: sqlite3.Connection, *, schema: str) -> None:
        """Takes over the connection; `schema` has the tables and views with their comments.

        Ctrl-C then ends a statement, which otherwise may run for hours without a Python
        instruction; Python handles signals only between two instructions.
        """
        self.schema = schema
        self._connection = connection
        connection.set_progress_handler(lambda: 0, INTERRUPT_STEPS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def query(self, sql: str, params: Params = ()) -> RowTable:
        """Runs one statement and fetches all rows; raises as `stream` does."""
        found = self.stream(sql, params)
        return RowTable(columns=found.columns, rows=tuple(found.rows))

    def stream(self, sql: str, params: Params = ()) -> RowStream:
        """Like `query`, one row at a time; the WAL cannot be reset until all rows are fetched.

        Raises:
            sqlite3.Error: a mistake in the statement.
            KeyboardInterrupt: Ctrl-C, also while rows are fetched.
            ConfigError: the statement has bytes that are not UTF-8.
            MachineError: the database is damaged.
        """
        try:
            with _interruptible():
                cursor = self._connection.execute(sql, params)
        except UnicodeEncodeError as error:
            raise ConfigError(f"{error.object!a}: no UTF-8 at {error.start}") from error
        columns = tuple(item[0] for item in cursor.description or ())
        return RowStream(columns=columns, rows=_fetch(cursor))

    def rows(self, sql: str, params: Params = ()) -> list[dict[str, Any]]:
        """The rows as dictionaries: `open_run("last").rows("SELECT * FROM v_steps")`."""
        table = self.query(sql, params)
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows]

    def one(self, sql: str, params: Params = ()) -> dict[str, Any] | None:
        """The first row, or None."""
        found = self.rows(sql, params)
        return found[0] if found else None

    def value(self, sql: str, params: Params = ()) -> Any:
        """The first column of the first row, or None."""
        row = next(self.stream(sql, params).rows, None)
        return None if row is None else row[0]


@contextmanager
def explain_sql(place: str) -> Generator[None]:
    """Turns a mistake in the user's SQL into one ConfigError line."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        message = str(error).replace("\n", " ")
        if "not authorized" in message or "readonly" in message:
            message += "; a run is read-only"
        raise ConfigError(
            f'{place}: {message}; "forge sql RUN" alone lists tables and views'
        ) from error


def authorize_pragma(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Denies a pragma that sets something; an authorizer for sqlite3, which allows the rest."""
    if action == sqlite3.SQLITE_PRAGMA and second is not None:
        is_looking = str(first).lower() in LOOKING_PRAGMAS
        return sqlite3.SQLITE_OK if is_looking else sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _fetch(cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    with _interruptible():
        for row in cursor:  # noqa: UP028  # `yield from` closes the cursor, which may be too late
            yield row


@contextmanager
def _interruptible() -> Generator[None]:
    """Restores KeyboardInterrupt, which sqlite3 replaces by `interrupted`, and explains damage,
    which may appear only when a page is read.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from error
        if is_damage(error):
            raise MachineError(f"a database of the run is {DAMAGED}: {error}") from error
        raise
