"""Reads a run, live or ended, through read-only connections.

Used by the views, `forge sql`, the TUI and notebooks. Nothing here writes to a run: if texts are
compressed or the run's views differ from this version's, temporary views of the same names hide
them. In SQL, `text(x)` decodes a stored body or looks up a text_id; the views and `texts` are
decoded already.

A run may be live, on a read-only disk, damaged, or copied in part; what cannot be read is one line
that says what to do. SQLite leaves an empty -wal and a -shm beside a database that was read without
a writer; only a writer may delete them, and the next does.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from forge.errors import ConfigError, ForgeError, MachineError
from forge.store.acknowledged import read_acknowledged
from forge.store.codec import Body, decode_text
from forge.store.layout import RunPaths, find_run
from forge.store.schema.create import check_version, has_views
from forge.store.schema.views import VIEWS

if TYPE_CHECKING:
    from sqlite_utils import Database

logger = logging.getLogger(__name__)

MAX_FAULTS = 5
LARGEST = 2**63 - 1
"""Largest integer of SQLite."""
QUICK_S = 3.0
"""Maximum delay of a resume; 2 GB of a database are read in that time."""
DAMAGED = "damaged, or was copied in part; copy the run's whole directory, -wal files too"
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_corrupt(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _CORRUPT


def is_damage(error: BaseException) -> bool:
    """True if the file is at fault, not the statement."""
    is_unread = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR
    return is_corrupt(error) or is_unread


def open_read_only(path: Path) -> tuple[sqlite3.Connection, str]:
    """Opens a database; returns the connection and the mode in its URI.

    If even the index of the WAL cannot be created (a read-only medium), the mode is `immutable=1`.

    Raises:
        ConfigError: the database cannot be read here; the message says why.
        MachineError: it is damaged.
    """
    connection = _try_open(path, "mode=ro")
    if connection is not None:
        return connection, "mode=ro"
    os.close(os.open(os.sep, os.O_RDONLY))  # raises if this process may open no more files
    if _has_wal(path):
        raise ConfigError(
            f"{path}: cannot be read: its last rows are in {path.name}-wal, which needs a "
            "place for its -shm file; copy the run's directory to a disk that can be written"
        )
    connection = _try_open(path, "immutable=1")
    if connection is None:
        raise ConfigError(f"{path}: cannot be read: no permission, or no place for its -shm file")
    return connection, "immutable=1"


def _has_wal(path: Path) -> bool:
    wal = path.with_name(f"{path.name}-wal")
    return wal.exists() and wal.stat().st_size > 0


def _check_whole(path: Path, connection: sqlite3.Connection) -> None:
    """Raises MachineError if the file is shorter than its header says and no WAL may hold the rest.

    The size comes from stat and SQLite: opening and closing the file here would drop the POSIX
    locks of every connection to it in this process, a writer's too.
    """
    if _has_wal(path):
        return
    wanted = connection.execute(
        "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    ).fetchone()[0]
    if (found := path.stat().st_size) < wanted:
        raise MachineError(f"{path}: {found} of its {wanted} bytes are there: {DAMAGED}")


def _try_open(path: Path, mode: str) -> sqlite3.Connection | None:
    """Opens in this mode; None if SQLite cannot. Raises MachineError if it is no database."""
    connection = sqlite3.connect(
        uri_of(path, mode), uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA busy_timeout = 5000")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        _check_whole(path, connection)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.OperationalError):
            return None
        if isinstance(error, sqlite3.DatabaseError):
            raise MachineError(f"{path}: cannot be read: {error}; it is {DAMAGED}") from error
        raise
    return connection


def uri_of(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.resolve()))}?{mode}"


Params = Sequence[Any] | Mapping[str, Any]


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


def fetch(cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    with interruptible():
        for row in cursor:  # noqa: UP028  # `yield from` closes the cursor, which may be too late
            yield row


@contextmanager
def interruptible() -> Generator[None]:
    """Restores KeyboardInterrupt, which sqlite3 replaces by `interrupted`, and explains damage,
    which may appear only when a page is read."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from error
        if is_damage(error):
            raise MachineError(f"a database of the run is {DAMAGED}: {error}") from error
        raise


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
        found = self.rows(sql, params)
        return found[0] if found else None

    def value(self, sql: str, params: Params = ()) -> Any:
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


def find_faults(path: Path) -> list[str]:
    """The first faults of a database: `PRAGMA integrity_check` and `foreign_key_check`."""
    try:
        with closing(open_read_only(path)[0]) as connection:
            found = _check(connection, "integrity_check")
            broken = connection.execute("PRAGMA foreign_key_check").fetchmany(MAX_FAULTS)
            return found + [f"{table} row {row}: refers to nothing" for table, row, *_ in broken]
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return [str(error)]
        raise


def refuse_damage(paths: RunPaths) -> None:
    """Looks for damage in run.db for at most QUICK_S.

    Raises:
        ConfigError: run.db is absent or has another schema.
        MachineError: it is damaged.
    """
    if not paths.run_db.exists():
        raise ConfigError(f"{paths.root}: no run.db in it, so nothing was recorded")
    connection, _ = open_read_only(paths.run_db)
    timer = threading.Timer(QUICK_S, connection.interrupt)
    with closing(connection):
        timer.start()
        try:
            check_version(connection, path=paths.run_db)
            faults = _check(connection, "quick_check")
        except sqlite3.DatabaseError as error:
            if not is_damage(error):  # interrupted: found none in time
                return
            faults = [str(error)]
        finally:
            timer.cancel()
            timer.join()
    if faults:
        raise MachineError(
            f"{paths.run_db}: damaged: {faults[0]}; put a copy of it there, without a run.db-wal: "
            f'"forge resume {paths.name}" says what the copy lacks. "forge doctor {paths.name}" '
            "lists the damage"
        )


def _check(connection: sqlite3.Connection, name: str) -> list[str]:
    rows = connection.execute(f"PRAGMA {name}({MAX_FAULTS})").fetchall()
    lines = [line for (text,) in rows for line in str(text).splitlines()]
    return [line for line in lines if line != "ok" and not line.startswith("*** in database")]
