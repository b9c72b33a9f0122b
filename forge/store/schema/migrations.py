"""Schema versions: reads a database's version, migrates it to the newest, refuses a newer one.

The writer calls `migrate`, readers call `check_version`. `PRAGMA user_version` counts the applied
migrations; each runs in one transaction, forward only. sqlite-utils' own `Migrations` counts in a
table instead; existing runs use the pragma, and readers check it without importing sqlite-utils.

sqlite-utils is imported only when there is something to write: it takes 0.5 s and 70 MB, most of
both for pandas. Its `executescript` is not used: inside a transaction it searches for the end of a
statement character by character, 0.3 s for this schema.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from forge.errors import ConfigError, MachineError
from forge.store.schema.estimate_tables import RUN_TABLES_6
from forge.store.schema.judged_again import RUN_TABLES_8
from forge.store.schema.program_tables import RUN_TABLES_3
from forge.store.schema.prompt_columns import RUN_TABLES_7
from forge.store.schema.protocol_tables import RUN_TABLES_4
from forge.store.schema.rollup_tables import RUN_TABLES_2
from forge.store.schema.shape_tables import RUN_TABLES_5
from forge.store.schema.tables import RUN_TABLES_1, TOKEN_TABLES_1

APPLICATION_ID = 0x666F7267
"""`forg`, as `file run.db` and `PRAGMA application_id` show it."""

RUN_MIGRATIONS = (
    RUN_TABLES_1, RUN_TABLES_2, RUN_TABLES_3, RUN_TABLES_4, RUN_TABLES_5, RUN_TABLES_6,
    RUN_TABLES_7, RUN_TABLES_8,
)  # fmt: skip
TOKEN_MIGRATIONS = (TOKEN_TABLES_1,)
RUN_VERSION = len(RUN_MIGRATIONS)

_CREATED = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
_ADDED = re.compile(r"^ALTER TABLE (\w+) ADD COLUMN (\w+)", re.MULTILINE)


def check_version(connection: sqlite3.Connection, *, path: Path, known: int = RUN_VERSION) -> int:
    """Returns the database's schema version, 0 for an empty one.

    Raises:
        ConfigError: the schema is newer than `known`, or the database is not forge's.
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


def check_not_lowered(
    connection: sqlite3.Connection, *, path: Path, found: int, migrations: tuple[str, ...]
) -> None:
    """Raises MachineError if the database has tables or columns of a schema after its version
    `found`."""
    newer = range(len(migrations), found, -1)
    if number := next((n for n in newer if _is_applied(connection, migrations[n - 1])), 0):
        raise MachineError(
            f"{path}: user_version says schema {found}, but the tables of schema {number} are "
            f"there: the number was changed. Allowed: {number}, which sqlite3 sets with "
            f'"PRAGMA user_version = {number}", or a copy from before the change'
        )


def _is_applied(connection: sqlite3.Connection, script: str) -> bool:
    """True if some table or column that the script adds is there."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    columns = (
        connection.execute("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", added).fetchone()
        for added in _ADDED.findall(script)
    )
    return not names.isdisjoint(_CREATED.findall(script)) or any(columns)


def migrate(
    connection: sqlite3.Connection, *, path: Path, migrations: tuple[str, ...], views: str = ""
) -> None:
    """Applies the missing migrations, then replaces the views if they differ from `views`.

    Views hold no data, so changing one needs no migration.

    Raises:
        ConfigError: the schema is newer than `migrations`; nothing was written.
        MachineError: a missing migration was applied already; nothing was written.
        sqlite3.Error: a statement failed; its transaction was rolled back.
    """
    found = check_version(connection, path=path, known=len(migrations))
    check_not_lowered(connection, path=path, found=found, migrations=migrations)
    is_stale = bool(views) and not has_views(connection, views)
    if found == len(migrations) and not is_stale:
        return
    from sqlite_utils import Database

    # Without recursive triggers and plugins, the writer's connection stays as it was set up.
    db = Database(connection, recursive_triggers=False, execute_plugins=False)
    for number, script in enumerate(migrations[found:], start=found + 1):
        with db.atomic():
            for statement in split_statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
    if is_stale:
        with db.atomic():
            for view in db.views:
                view.drop()
            for statement in split_statements(views):
                connection.execute(statement)


def has_views(connection: sqlite3.Connection, views: str) -> bool:
    """True if the database's own views are exactly those of the script."""
    rows = connection.execute("SELECT sql FROM main.sqlite_master WHERE type = 'view'").fetchall()
    return sorted(sql for (sql,) in rows) == sorted(split_statements(views))


def split_statements(script: str) -> list[str]:
    """Splits SQL at the semicolons that end a line and a statement.

    Returns:
        Statements without their semicolon, as `sqlite_master.sql` stores them.
    """
    found: list[str] = []
    current = ""
    for line in script.splitlines(keepends=True):
        current += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(current):
            found.append(current.strip().removesuffix(";"))
            current = ""
    return [*found, current.strip()] if current.strip() else found
