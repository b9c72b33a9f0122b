"""Schema: whole or not at all, and nothing to do for a database that has it."""

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from forge.cli import run_command
from forge.records import ToolCall
from forge.store.layout import RunPaths
from forge.store.schema import rollups
from forge.store.schema.create import APPLICATION_ID, VERSION, create, create_run
from forge.store.write import writer
from forge.views import run_state
from tests.docs.pages import Block, read_blocks
from tests.store.storefactory import small_run, turn, write_run

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


@pytest.mark.parametrize(
    "command",
    [
        *("show RUN", "sql RUN", "status RUN", "resume RUN", "resume RUN -d", "judge --run RUN"),
        *("train --replay RUN:1", "serve RUN --socket s.sock", "archive RUN --no-weights"),
        *("eval RUN --suite kernelbench-l1", "data prompt tanh --run RUN"),
    ],
)
def test_a_run_of_another_version_is_refused_by_every_command_in_one_line(
    command: str, canned_run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = connect(canned_run.run_db)
    connection.execute("PRAGMA application_id = 7")
    connection.close()
    with canned_run.experiment.open("a") as file:
        file.write("[gone]\nkey = 1\n")
    argv = [each.replace("RUN", str(canned_run.root)) for each in command.split()]
    assert run_command(argv) == 2
    said = capsys.readouterr().err
    assert "run.db: no database of this forge" in said
    assert said.count("\n") == 1


BLOCKS = read_blocks("sql")


@pytest.fixture(scope="module")
def run_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("docs") / "toy-1"
    call = ToolCall(message="Docs?", tool="docs", arguments={}, result="tl.load", seconds=0.5)
    anyio.run(write_run, root, [*small_run(), replace(turn(9), calls=(call,))])
    return root / "run.db"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_query_of_a_document_answers_in_stock_sqlite3(run_db: Path, block: Block) -> None:
    with closing(connect(run_db)) as stock:
        assert stock.execute(block.text).fetchall()


BOUNDED = re.compile(
    r"SCAN (\(subquery-\d+\)|latest|g|o|k|a|open_\w+|live_\w+)$|SCAN \w+ VIRTUAL TABLE"
)
"""Lists that do not grow with the run: results of subqueries (`g` is live_groups, `o` open_steps),
kernels of one step, groups being played, attempts, JSON."""


@pytest.fixture
def run(tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    create_run(connection, path=tmp_path)
    return connection


def scans(run: sqlite3.Connection, sql: str, params: dict[str, object]) -> list[str]:
    """Steps of a statement's plan that read a whole table."""
    with closing(run.execute(f"EXPLAIN QUERY PLAN {sql}", params)) as rows:
        plan = [row[3] for row in rows]
    return [line for line in plan if line.startswith("SCAN") and not BOUNDED.match(line)]


LATEST = "SCAN groups USING INDEX groups_by_step"
"""From its end, LIMIT 1."""


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        *((sql, []) for sql in (*rollups._SETTLE, run_state._TRAINED, run_state._LAST_TRAINED)),
        (writer._SPENT, [LATEST]),
    ],
)
def test_a_statement_reads_no_more_for_a_longer_run(
    run: sqlite3.Connection, sql: str, expected: list[str]
) -> None:
    asked = {"stage": 1, "step": 2, "attempt": 1, "num_steps": 3, "held": "[1]", "is_strict": True}
    assert scans(run, sql, asked) == expected
