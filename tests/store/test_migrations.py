"""Migrations: whole or not at all, and nothing to do for a database of this version."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from forge.store.schema.migrations import (
    APPLICATION_ID,
    RUN_MIGRATIONS,
    migrate,
    split_statements,
)
from forge.store.schema.rollup_tables import RUN_TABLES_2
from forge.store.schema.run_views import VIEWS, view_names

BROKEN = "CREATE TABLE half (x);\nINSERT INTO half VALUES (1);\nCREATE TABLE half (y);\n"


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    connection = connect(path)
    migrate(connection, path=path, migrations=RUN_MIGRATIONS, views=VIEWS)
    before = list(connection.iterdump())
    with pytest.raises(sqlite3.Error, match="half"):
        migrate(connection, path=path, migrations=(*RUN_MIGRATIONS, BROKEN), views="")
    assert not connection.in_transaction
    assert list(connection.iterdump()) == before
    assert connection.execute("PRAGMA user_version").fetchone() == (8,)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    connection.close()


def test_views_that_fail_leave_the_old_ones(tmp_path: Path) -> None:
    connection = connect(tmp_path / "run.db")
    migrate(connection, path=Path("run.db"), migrations=RUN_MIGRATIONS, views=VIEWS)
    with pytest.raises(sqlite3.Error):
        migrate(connection, path=Path("run.db"), migrations=RUN_MIGRATIONS, views="CREATE VIEW;\n")
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall()
    assert {name for (name,) in found} == set(view_names())
    connection.close()


def test_a_database_of_this_version_is_not_written_and_needs_no_sqlite_utils(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.db"
    connection = connect(path)
    migrate(connection, path=path, migrations=RUN_MIGRATIONS, views=VIEWS)
    connection.close()
    code = (
        "import sqlite3, sys\n"
        "from pathlib import Path\n"
        "from forge.store.schema.migrations import RUN_MIGRATIONS, migrate\n"
        "from forge.store.schema.run_views import VIEWS\n"
        f"connection = sqlite3.connect('file:{path}?mode=ro', uri=True)\n"
        "migrate(connection, path=Path('run.db'), migrations=RUN_MIGRATIONS, views=VIEWS)\n"
        "assert 'sqlite_utils' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_script_is_split_where_statements_end() -> None:
    script = "-- a; b;\nCREATE TABLE t (x); -- c;\nINSERT INTO t VALUES (';\n');\nSELECT 1"
    statements = split_statements(script)
    assert statements[-2:] == ["INSERT INTO t VALUES (';\n')", "SELECT 1"]
    triggers = [each for each in split_statements(RUN_TABLES_2) if "CREATE TRIGGER" in each]
    assert all(each.count("CREATE TRIGGER") == 1 and each.endswith("END") for each in triggers)
    assert len(triggers) == RUN_TABLES_2.count("CREATE TRIGGER")
