"""Creates the tables of a new database, and recognises those of an existing one.

The writer calls `create`, readers call `check_version`. `PRAGMA user_version` is VERSION: a run of
another one is refused. Views hold no data: those of a run may differ, and the writer replaces them.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from forge.errors import ConfigError, MachineError
from forge.store.schema.rollups import OPEN_TABLES, ROLLED_TABLES
from forge.store.schema.tables import RUN_TABLES, TOKEN_TABLES
from forge.store.schema.views import VIEWS

APPLICATION_ID = 0x46474532
"""`FGE2`, as `file run.db` and `PRAGMA application_id` show it."""
VERSION = 1

RUN_SCHEMA = RUN_TABLES + OPEN_TABLES + VIEWS + ROLLED_TABLES
TOKEN_SCHEMA = TOKEN_TABLES

_VERSION = """
SELECT user_version, application_id, (SELECT count(*) FROM main.sqlite_master)
FROM pragma_user_version, pragma_application_id
"""
"""One statement, so that a writer may create the tables meanwhile."""


def check_version(connection: sqlite3.Connection, *, path: Path) -> int:
    """Returns the database's schema version: VERSION, or 0 for an empty one.

    Raises:
        ConfigError: the database has another schema, or is not forge's.
        MachineError: its version is 0, but it has tables.
    """
    found, owner, num_tables = connection.execute(_VERSION).fetchone()
    if found and owner != APPLICATION_ID:
        raise ConfigError(
            f"{path}: no database of this forge (application_id {owner:#x}, not "
            f"{APPLICATION_ID:#x}); read it with the version that wrote it"
        )
    if found > VERSION:
        raise ConfigError(
            f"{path}: schema {found} is newer than this forge, which knows {VERSION}; "
            "read it with the version that wrote it, or a later one"
        )
    if num_tables and not found:
        raise MachineError(
            f"{path}: user_version says that it is empty, but it has tables: the number was "
            f'changed. Allowed: {VERSION}, which sqlite3 sets with "PRAGMA user_version = '
            f'{VERSION}", or a copy from before the change'
        )
    return found


def create(connection: sqlite3.Connection, *, path: Path, tables: str, views: str = "") -> None:
    """Creates the tables of an empty database, then replaces the views if they differ.

    Raises:
        ConfigError, MachineError: as by `check_version`; nothing was written.
        sqlite3.Error: a statement failed; its transaction was rolled back.
    """
    if not check_version(connection, path=path):
        own = f"PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {VERSION};"
        _execute(connection, f"{tables}\n{own}")
    if views and not has_views(connection, views):
        names = "SELECT name FROM main.sqlite_master WHERE type = 'view'"
        others = connection.execute(names).fetchall()
        _execute(connection, "".join(f'DROP VIEW "{name}";\n' for (name,) in others) + views)


def create_run(connection: sqlite3.Connection, *, path: Path) -> None:
    """Creates run.db, or brings its views up to date; raises as `create` does."""
    create(connection, path=path, tables=RUN_SCHEMA, views=VIEWS)


def has_views(connection: sqlite3.Connection, views: str) -> bool:
    """True if the database's own views are exactly those of the script."""
    rows = connection.execute("SELECT sql FROM main.sqlite_master WHERE type = 'view'").fetchall()
    # As `sqlite_master` has them: without their semicolon.
    wanted = [f"CREATE VIEW{sql.rstrip().removesuffix(';')}" for sql in views.split("CREATE VIEW")]
    return sorted(sql for (sql,) in rows) == sorted(wanted[1:])


def _execute(connection: sqlite3.Connection, script: str) -> None:
    """Runs a script in a transaction of its own. The connection is in autocommit mode."""
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nCOMMIT;")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
