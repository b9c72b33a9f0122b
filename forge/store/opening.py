"""Opening a run's databases for reading, in whatever state they are found.

Used by `store.reader`. A run may be written at this moment, lie on a read-only disk, be of an older
schema, or have been copied in part; what cannot be read is one ConfigError line that says what to
do. Where texts are compressed or the run's views are not ours, a temporary view of the same name
stands before each. SQLite leaves an empty -wal and a -shm beside a database that was read while
nobody wrote it: only a writer may take them away, and the next one does.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING
from urllib.parse import quote

from forge.errors import ConfigError
from forge.store.schema.migrations import (
    RUN_VERSION,
    check_version,
    has_views,
    split_statements,
)
from forge.store.schema.run_views import PLAIN_VIEWS, VIEWS

if TYPE_CHECKING:
    from pathlib import Path

    from forge.store.layout import RunPaths

logger = logging.getLogger(__name__)

DAMAGED = "damaged, or was copied in part; copy the run's whole directory, -wal files too"
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR)


def connect(paths: RunPaths) -> sqlite3.Connection:
    """run.db with tokens.db attached as `tokens`, where that can be read. Raises ConfigError."""
    if not paths.run_db.is_file():
        raise ConfigError(f"{paths.root}: no run.db in it, so it is no run")
    connection, mode = open_read_only(paths.run_db)
    try:
        version = check_version(connection, path=paths.run_db)
        if not version:
            raise ConfigError(
                f"{paths.root}: nothing is recorded in it yet, or its run.db-wal was not copied"
            )
        if paths.tokens_db.is_file():
            _attach_tokens(connection, paths.tokens_db, mode)
        _put_views_before(connection, version=version)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
            raise ConfigError(f"{paths.run_db}: {DAMAGED}: {error}") from error
        raise
    return connection


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is at fault, not the statement."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def open_read_only(path: Path) -> tuple[sqlite3.Connection, str]:
    """A connection and the mode of its address; where even WAL's index cannot be made (a read-only
    medium), the file as it lies there.
    """
    connection = _try_open(path, "mode=ro")
    if connection is not None:
        return connection, "mode=ro"
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists() and wal.stat().st_size:
        raise ConfigError(
            f"{path}: cannot be read: its last rows are in {wal.name}, which needs a place for its "
            "-shm file; copy the run's directory to a disk that can be written"
        )
    connection = _try_open(path, "immutable=1")
    if connection is None:
        raise ConfigError(f"{path}: cannot be read: no permission, or no place for its -shm file")
    return connection, "immutable=1"


def _check_whole(path: Path, connection: sqlite3.Connection) -> None:
    """Raises ConfigError for a file shorter than it says, unless a WAL may hold the rest. By
    SQLite's own descriptor: closing one of ours would drop the locks of every connection to the
    file in this process, a writer's too.
    """
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists() and wal.stat().st_size:
        return
    wanted = connection.execute(
        "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    ).fetchone()[0]
    if (found := path.stat().st_size) < wanted:
        raise ConfigError(f"{path}: {found} of its {wanted} bytes are there: {DAMAGED}")


def _try_open(path: Path, mode: str) -> sqlite3.Connection | None:
    """None where SQLite cannot open it so. Raises ConfigError where it is no database."""
    connection = sqlite3.connect(
        _uri(path, mode), uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA busy_timeout = 5000")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        _check_whole(path, connection)
    except sqlite3.OperationalError:
        connection.close()
        return None
    except ConfigError:
        connection.close()
        raise
    except sqlite3.DatabaseError as error:
        connection.close()
        raise ConfigError(f"{path}: cannot be read: {error}; it is {DAMAGED}") from error
    return connection


def _attach_tokens(connection: sqlite3.Connection, path: Path, mode: str) -> None:
    """No view needs them: a run whose tokens.db is damaged is still read."""
    try:
        connection.execute(f"ATTACH '{_uri(path, mode)}' AS tokens")
        connection.execute("SELECT count(*) FROM tokens.sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        logger.warning("%s: cannot be read, so its tokens are not shown: %s", path, error)


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.resolve()))}?{mode}"


def _put_views_before(connection: sqlite3.Connection, *, version: int) -> None:
    """Temporary views: ours where the run's read differently, decoding ones where texts are
    compressed. None where both are as they should be.
    """
    ours = VIEWS if version == RUN_VERSION else PLAIN_VIEWS
    row = connection.execute("SELECT texts FROM main.runs").fetchone()
    is_plain = row is None or row[0] == "plain"
    if is_plain and has_views(connection, ours):
        return
    if not is_plain:
        connection.execute(
            "CREATE TEMP VIEW texts AS SELECT text_id, sha256, num_bytes, text(body) AS body FROM "
            "main.texts"
        )
    for sql in split_statements(ours):
        connection.execute(sql.replace("CREATE VIEW", "CREATE TEMP VIEW", 1))
