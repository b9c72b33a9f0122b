"""Opens a run's databases read-only, in whatever state they are. Used by `store.reader`.

A run may be live, on a read-only disk, of another schema, damaged, or copied in part; what cannot
be read is one line that says what to do. If texts are compressed or the run's views differ from
this version's, temporary views of the same names hide them. SQLite leaves an empty -wal and a -shm
beside a database that was read without a writer; only a writer may delete them, and the next does.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from typing import TYPE_CHECKING
from urllib.parse import quote

from forge.errors import ConfigError, ForgeError, MachineError
from forge.store.acknowledged import read_acknowledged
from forge.store.schema.create import check_version, has_views, split_statements
from forge.store.schema.views import VIEWS

if TYPE_CHECKING:
    from pathlib import Path

    from forge.store.layout import RunPaths

logger = logging.getLogger(__name__)

DAMAGED = "damaged, or was copied in part; copy the run's whole directory, -wal files too"
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def connect(paths: RunPaths) -> sqlite3.Connection:
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


def is_corrupt(error: BaseException) -> bool:
    """True if SQLite found the content of a database to be wrong."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _CORRUPT


def is_damage(error: BaseException) -> bool:
    """True if the file is at fault, not the statement."""
    is_unread = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR
    return is_corrupt(error) or is_unread


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
        _uri(path, mode), uri=True, isolation_level=None, check_same_thread=False
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


def _attach_tokens(connection: sqlite3.Connection, path: Path, mode: str) -> None:
    """Attaches tokens.db; a damaged one is logged and skipped, since no view needs it."""
    try:
        connection.execute(f"ATTACH '{_uri(path, mode)}' AS tokens")
        connection.execute("SELECT count(*) FROM tokens.sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        logger.warning("%s: cannot be read, so its tokens are not shown: %s", path, error)


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.resolve()))}?{mode}"


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
    for sql in split_statements(VIEWS):
        connection.execute(sql.replace("CREATE VIEW", "CREATE TEMP VIEW", 1))
