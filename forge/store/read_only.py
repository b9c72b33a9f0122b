"""Read-only connections: opening a database in whatever state it is, statements and their results,
Ctrl-C, damage, refused pragmas.

A run may be live, on a read-only disk, damaged, or copied in part; what cannot be read is one line
that says what to do. SQLite leaves an empty -wal and a -shm beside a database that was read without
a writer; only a writer may delete them, and the next does.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from forge.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from pathlib import Path

DAMAGED = "damaged, or was copied in part; copy the run's whole directory, -wal files too"
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_corrupt(error: BaseException) -> bool:
    """True if SQLite found the content of a database to be wrong."""
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
    """The URI of a database for SQLite."""
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
    """The rows, one at a time."""
    with interruptible():
        for row in cursor:  # noqa: UP028  # `yield from` closes the cursor, which may be too late
            yield row


@contextmanager
def interruptible() -> Generator[None]:
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
