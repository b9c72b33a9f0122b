"""Reads a run, live or ended, through a read-only connection.

Used by the views, `forge sql`, the TUI and notebooks.

In SQL, `text(x)` decodes a stored body or looks up a text_id; the views and `texts` are decoded
already (`store.opening`). Nothing here writes to a run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from forge.errors import ConfigError, ForgeError
from forge.store.codec import Body, Lookup, decode_text
from forge.store.json_columns import BadColumn, find_bad_json
from forge.store.layout import RunPaths, find_run
from forge.store.opening import DAMAGED, connect, is_damage, open_read_only

if TYPE_CHECKING:
    from sqlite_utils import Database

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


class RunReader:
    """A read-only connection to one run. Close it, or use it in a `with`."""

    schema = "main"
    """Database that has the run's tables and views."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self._connection = connect(paths)
        self._lookup = open_read_only(paths.run_db)[0]
        self._bodies = body_lookup(self._lookup)
        self._connection.create_function("text", 1, self._text, deterministic=True)
        self._connection.set_authorizer(_authorize)
        let_interrupt(self._connection)

    def __enter__(self) -> Self:
        self._leaving = ExitStack()
        self._leaving.callback(self.close)
        self._leaving.enter_context(self.explained())
        return self

    def __exit__(self, *raised: Any) -> None:
        self._leaving.__exit__(*raised)

    def close(self) -> None:
        """Closes both connections."""
        self._connection.close()
        self._lookup.close()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns any error caused by a column without its JSON object into one BadColumn line.

        A `with` on the reader does so too.
        """
        try:
            yield
        except ForgeError:
            raise
        except Exception as error:
            found = find_bad_json(self._connection)
            if found is None:
                raise
            raise BadColumn(f"{self.paths.run_db}: {found}") from error

    def query(self, sql: str, params: Params = ()) -> RowTable:
        """Runs one statement. Raises sqlite3.Error for a mistake in it."""
        found = self.stream(sql, params)
        return RowTable(columns=found.columns, rows=tuple(found.rows))

    def stream(self, sql: str, params: Params = ()) -> RowStream:
        """Like `query`, one row at a time; the WAL cannot be reset until all rows are fetched."""
        return stream(self._connection, sql, params)

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

    @cached_property
    def db(self) -> Database:
        """This connection as a read-only `sqlite_utils.Database`, for analysis.

        `reader.db["v_steps"].rows_where("reward > ?", [0.5])`, `reader.db.schema`. Texts are
        decoded and `text()` is there, as in `query`; writes raise sqlite3.DatabaseError. Closed
        with the reader.
        """
        from sqlite_utils import Database

        # Its pragma for recursive triggers is a write, which `_authorize` refuses.
        return Database(self._connection, recursive_triggers=False)

    def data_version(self) -> int:
        """Number that changes with every commit of the writer; reading it takes 5 us."""
        return self._connection.execute("PRAGMA data_version").fetchone()[0]

    def _text(self, value: Any) -> str | None:
        body = self._bodies(value) if isinstance(value, int) else value
        return decode_text(body, self._bodies)


def body_lookup(connection: sqlite3.Connection, schema: str = "main") -> Lookup:
    """A lookup of stored bodies by text_id, for `decode_text`."""

    def lookup(text_id: int) -> Body | None:
        query = f'SELECT body FROM "{schema}".texts WHERE text_id = ?'
        row = connection.execute(query, (text_id,)).fetchone()
        return None if row is None else row[0]

    return lookup


def let_interrupt(connection: sqlite3.Connection) -> None:
    """Lets Ctrl-C end a statement, which otherwise runs without a Python instruction, possibly for
    hours; Python handles signals only between two instructions.
    """
    connection.set_progress_handler(lambda: 0, INTERRUPT_STEPS)


def stream(connection: sqlite3.Connection, sql: str, params: Params = ()) -> RowStream:
    """Starts a statement.

    Raises:
        sqlite3.Error: a mistake in the statement.
        KeyboardInterrupt: Ctrl-C, also while rows are fetched.
        ConfigError: the statement has bytes that are not UTF-8, or the database is damaged.
    """
    try:
        with _interruptible():
            cursor = connection.execute(sql, params)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{error.object!a}: no UTF-8 at {error.start}") from error
    columns = tuple(item[0] for item in cursor.description or ())
    return RowStream(columns=columns, rows=_take(cursor))


def _take(cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    with _interruptible():
        for row in cursor:  # noqa: UP028  # `yield from` closes the cursor, which may be too late
            yield row


@contextmanager
def _interruptible() -> Iterator[None]:
    """Restores KeyboardInterrupt, which sqlite3 replaces by `interrupted`, and explains damage,
    which may appear only when a page is read.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from error
        if is_damage(error):
            raise ConfigError(f"a database of the run is {DAMAGED}: {error}") from error
        raise


def open_run(run: str | Path | RunPaths, *, store_dir: Path = Path("runs")) -> RunReader:
    """Opens a run by path, name, `name-n` or `last`.

    Raises:
        ConfigError: there is no such run, it is empty, or it is newer than this forge.
    """
    return RunReader(run if isinstance(run, RunPaths) else find_run(run, store_dir=store_dir))


@contextmanager
def explain_sql(place: str) -> Iterator[None]:
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


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Allows no pragma that sets something, and attaches databases read-only."""
    if action == sqlite3.SQLITE_ATTACH:
        is_read_only = bool(first) and ("mode=ro" in str(first) or "immutable=1" in str(first))
        return sqlite3.SQLITE_OK if is_read_only else sqlite3.SQLITE_DENY
    return authorize_pragma(action, first, second)


def authorize_pragma(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Denies a pragma that sets something; an authorizer for sqlite3, which allows the rest."""
    if action == sqlite3.SQLITE_PRAGMA and second is not None:
        is_looking = str(first).lower() in LOOKING_PRAGMAS
        return sqlite3.SQLITE_OK if is_looking else sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
