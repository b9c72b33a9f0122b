"""Schema: whole or not at all, and nothing to do for a database that has it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forge.cli import run_command
from forge.store.schema.create import (
    APPLICATION_ID,
    RUN_SCHEMA,
    UNRELEASED_ID,
    VERSION,
    create,
    create_run,
    split_statements,
)
from forge.store.schema.views import view_names

if TYPE_CHECKING:
    from forge.store.layout import RunPaths

BROKEN = "CREATE TABLE half (x);\nINSERT INTO half VALUES (1);\nCREATE TABLE half (y);\n"


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def test_a_schema_that_fails_leaves_the_database_empty(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    connection = connect(path)
    with pytest.raises(sqlite3.Error, match="half"):
        create(connection, path=path, tables=BROKEN)
    assert not connection.in_transaction
    assert list(connection.iterdump()) == ["BEGIN TRANSACTION;", "COMMIT;"]
    create_run(connection, path=path)
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    connection.close()


def test_views_that_fail_leave_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    connection = connect(path)
    create_run(connection, path=path)
    with pytest.raises(sqlite3.Error):
        create(connection, path=path, tables=RUN_SCHEMA, views="CREATE VIEW;\n")
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall()
    assert {name for (name,) in found} == set(view_names())
    connection.close()


def test_a_database_that_has_the_schema_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    connection = connect(path)
    create_run(connection, path=path)
    connection.close()
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    create_run(connection, path=path)
    connection.close()


def test_a_script_is_split_where_statements_end() -> None:
    script = "-- a; b;\nCREATE TABLE t (x); -- c;\nINSERT INTO t VALUES (';\n');\nSELECT 1"
    statements = split_statements(script)
    assert statements[-2:] == ["INSERT INTO t VALUES (';\n')", "SELECT 1"]
    triggers = [each for each in split_statements(RUN_SCHEMA) if "CREATE TRIGGER" in each]
    assert all(each.count("CREATE TRIGGER") == 1 and each.endswith("END") for each in triggers)
    assert len(triggers) == RUN_SCHEMA.count("CREATE TRIGGER")


@pytest.mark.parametrize(
    "command",
    [
        *("show RUN", "sql RUN", "status RUN", "resume RUN", "resume RUN -d", "judge --run RUN"),
        *("train --replay RUN:1", "serve RUN --socket s.sock", "archive RUN --no-weights"),
        *("eval RUN --suite kernelbench-l1", "data prompt tanh --run RUN"),
    ],
)
def test_a_run_from_before_the_first_release_is_refused_in_one_line(
    command: str, canned_run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = connect(canned_run.run_db)
    connection.execute(f"PRAGMA application_id = {UNRELEASED_ID}")
    connection.close()
    with canned_run.experiment.open("a") as file:
        file.write("[gone]\nkey = 1\n")
    argv = [each.replace("RUN", str(canned_run.root)) for each in command.split()]
    assert run_command(argv) == 2
    said = capsys.readouterr().err
    assert "run.db: found a run recorded before the first release of forge" in said
    assert said.count("\n") == 1
