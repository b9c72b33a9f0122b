"""Reads a run, live or ended, through a read-only connection.

Used by the views, `forge sql`, the TUI and notebooks. Nothing here writes to a run: if texts are
compressed or the run's views differ from this version's, temporary views of the same names hide
them. In SQL, `text(x)` decodes a stored body or looks up a text_id; the views and `texts` are
decoded already.
"""

from __future__ import annotations

import logging
import sqlite3
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from forge.errors import ConfigError, ForgeError, MachineError
from forge.store.acknowledged import read_acknowledged
from forge.store.codec import Body, decode_text
from forge.store.layout import RunPaths, find_run
from forge.store.read_only import (
    DAMAGED,
    Params,
    RowStream,
    RowTable,
    fetch,
    interruptible,
    is_damage,
    open_read_only,
    uri_of,
)
from forge.store.schema.create import check_version, has_views
from forge.store.schema.views import VIEWS

if TYPE_CHECKING:
    from sqlite_utils import Database

logger = logging.getLogger(__name__)

LOOKING_PRAGMAS = frozenset(
    {
        *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"),
        "foreign_key_list",
    }
)
"""Pragmas that take an argument and change nothing."""
INTERRUPT_STEPS = 100_000
"""SQLite instructions between two checks for Ctrl-C: about a millisecond."""


class RunReader:
    """A read-only connection to one run. Close it, or use it in a `with`."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self._connection = _connect(paths)
        # Python handles Ctrl-C between two of its instructions only; a statement may take hours.
        self._connection.set_progress_handler(lambda: 0, INTERRUPT_STEPS)
        self._lookup = open_read_only(paths.run_db)[0]
        self._connection.create_function("text", 1, self._text, deterministic=True)
        self._connection.set_authorizer(_authorize)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes both connections."""
        self._connection.close()
        self._lookup.close()

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
            with interruptible():
                cursor = self._connection.execute(sql, params)
        except UnicodeEncodeError as error:
            raise ConfigError(f"{error.object!a}: no UTF-8 at {error.start}") from error
        columns = tuple(item[0] for item in cursor.description or ())
        return RowStream(columns=columns, rows=fetch(cursor))

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

    def path(self, recorded: str) -> Path:
        """A path that the run recorded (`RunPaths.record`), as it is now."""
        return self.paths.root / recorded

    def data_version(self) -> int:
        """Number that changes with every commit of the writer; reading it takes 5 us."""
        return self._connection.execute("PRAGMA data_version").fetchone()[0]

    def _text(self, value: Any) -> str | None:
        return decode_text(self._body(value) if isinstance(value, int) else value, self._body)

    def _body(self, text_id: int) -> Body | None:
        query = "SELECT body FROM main.texts WHERE text_id = ?"
        row = self._lookup.execute(query, (text_id,)).fetchone()
        return None if row is None else row[0]


def open_run(run: str | Path | RunPaths, *, store_dir: Path = Path("runs")) -> RunReader:
    """Opens a run by path, name, `name-n` or `last`.

    Raises:
        ConfigError: there is no such run, it is empty, or it is newer than this forge.
    """
    return RunReader(run if isinstance(run, RunPaths) else find_run(run, store_dir=store_dir))


def _connect(paths: RunPaths) -> sqlite3.Connection:
    """Opens run.db, with tokens.db attached as `tokens` if it can be read.

    Raises:
        ConfigError: it is no run, it is empty, or it cannot be read here.
        MachineError: it is damaged.
    """
    if not paths.run_db.is_file():
        raise ConfigError(f"{paths.root}: no run.db in it, so it is no run")
    connection, mode = open_read_only(paths.run_db)
    try:
        if not check_version(connection, path=paths.run_db):
            raise _empty(paths)
        if paths.tokens_db.is_file():
            _attach_tokens(connection, paths.tokens_db, mode)
        _add_temporary_views(connection)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
            raise MachineError(f"{paths.run_db}: {DAMAGED}: {error}") from error
        raise
    return connection


def _empty(paths: RunPaths) -> ForgeError:
    """The error of a run.db without a schema."""
    lost = read_acknowledged(paths.acknowledged)
    if not lost.turns:
        return ConfigError(
            f"{paths.root}: nothing is recorded in it yet, or its run.db-wal was not copied"
        )
    return MachineError(
        f"{paths.run_db}: empty, but {lost.turns} turns were recorded in it; put a copy of it "
        f'there, and "forge resume {paths.name}" says what the copy lacks'
    )


def _attach_tokens(connection: sqlite3.Connection, path: Path, mode: str) -> None:
    """Attaches tokens.db; a damaged one is logged and skipped, since no view needs it."""
    try:
        connection.execute(f"ATTACH '{uri_of(path, mode)}' AS tokens")
        connection.execute("SELECT count(*) FROM tokens.sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        logger.warning("%s: cannot be read, so its tokens are not shown: %s", path, error)


def _add_temporary_views(connection: sqlite3.Connection) -> None:
    """Hides the run's views by this version's, and `texts` by a decoding view.

    Adds none if texts are plain and the run's views are this version's.
    """
    row = connection.execute("SELECT texts FROM main.runs").fetchone()
    is_plain = row is None or row[0] == "plain"
    if is_plain and has_views(connection, VIEWS):
        return
    if not is_plain:
        connection.execute(
            "CREATE TEMP VIEW texts AS SELECT text_id, sha256, num_bytes, text(body) AS body FROM "
            "main.texts"
        )
    connection.executescript(VIEWS.replace("CREATE VIEW", "CREATE TEMP VIEW"))


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Allows no pragma that sets something, and attaches databases read-only."""
    if action == sqlite3.SQLITE_ATTACH:
        is_read_only = bool(first) and ("mode=ro" in str(first) or "immutable=1" in str(first))
        return sqlite3.SQLITE_OK if is_read_only else sqlite3.SQLITE_DENY
    is_setting = action == sqlite3.SQLITE_PRAGMA and second is not None
    if is_setting and str(first).lower() not in LOOKING_PRAGMAS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
