"""Schema versions: which one a database has, bringing it to ours, refusing a newer one.

Called by the writer (migrate) and the reader (check). Migrations are numbered by position, counted
in `PRAGMA user_version`, each in one transaction, forward only. Plain sqlite3: sqlite-utils takes
0.78 s to import.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from forge.errors import ConfigError
from forge.store.schema.rollup_tables import RUN_TABLES_2
from forge.store.schema.tables import RUN_TABLES_1, TOKEN_TABLES_1

APPLICATION_ID = 0x666F7267
"""`forg`: what `file run.db` and `PRAGMA application_id` say."""

RUN_MIGRATIONS = (RUN_TABLES_1, RUN_TABLES_2)
TOKEN_MIGRATIONS = (TOKEN_TABLES_1,)
RUN_VERSION = len(RUN_MIGRATIONS)


def check_version(connection: sqlite3.Connection, *, path: Path, known: int = RUN_VERSION) -> int:
    """The database's schema version, 0 for an empty one. Raises ConfigError for one that is newer
    than ours or not a database of ours.
    """
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found > known:
        raise ConfigError(
            f"{path}: schema {found} is newer than this forge, which knows {known}; "
            "read it with the version that wrote it, or a later one"
        )
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    if found and owner != APPLICATION_ID:
        raise ConfigError(f"{path}: not a database of forge (application_id {owner:#x})")
    return found


def migrate(
    connection: sqlite3.Connection, *, path: Path, migrations: tuple[str, ...], views: str = ""
) -> None:
    """Brings a database to our version. Raises ConfigError before anything is written where it is
    newer.
    """
    found = check_version(connection, path=path, known=len(migrations))
    for number, script in enumerate(migrations[found:], start=found + 1):
        _run(
            connection,
            f"PRAGMA application_id = {APPLICATION_ID}; {script} PRAGMA user_version = {number};",
        )
    if views:
        _refresh_views(connection, views)


def _refresh_views(connection: sqlite3.Connection, views: str) -> None:
    """Views hold no data: they are replaced whenever ours read differently, without a migration."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'").fetchall()
    wanted = [part.strip() for part in views.split(";\n") if part.strip()]
    if sorted(sql for _, sql in rows) == sorted(sql.rstrip(";") for sql in wanted):
        return
    drops = "".join(f'DROP VIEW "{name}";' for name, _ in rows)
    _run(connection, drops + views)


def _run(connection: sqlite3.Connection, script: str) -> None:
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {script} COMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.rollback()
        raise
