"""A long run: what the writer does at each step needs neither more memory nor more time."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forge.store.layout import RunPaths
from forge.store.schema import rollups
from forge.store.schema.create import create_run
from forge.store.write import databases
from forge.store.write.databases import Databases
from forge.views import run_state
from tests.store.storefactory import make_root

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


@pytest.mark.parametrize("sql", [*rollups._SETTLE, *rollups._SETTLE_NOISE], ids=range(15))
def test_settling_a_step_reads_no_other_step(run: sqlite3.Connection, sql: str) -> None:
    assert scans(run, sql, {"stage": 1, "step": 2}) == []


def test_spent_tokens_are_sought_among_groups_that_have_some(run: sqlite3.Connection) -> None:
    rule = {"held": "[1, 2]", "is_strict": True, "num_steps": 0}
    latest = "SCAN groups USING INDEX groups_by_step"  # from its end, LIMIT 1
    assert scans(run, databases._SPENT, rule) == [latest]


@pytest.mark.parametrize("sql", [run_state._TRAINED, run_state._LAST_TRAINED])
def test_the_state_of_a_run_is_found_by_index(run: sqlite3.Connection, sql: str) -> None:
    asked: dict[str, object] = {"stage": 1, "attempt": 1, "num_steps": 3}
    assert scans(run, sql, asked) == []


def test_the_page_caches_are_bounded(tmp_path: Path) -> None:
    """SQLite fills a page cache as the database grows, whatever the use."""
    make_root(tmp_path / "toy-1")
    opened = Databases(RunPaths(tmp_path / "toy-1"), texts="plain", now=1.0)
    try:
        for connection in (opened.run, opened.tokens):
            (size,) = connection.execute("PRAGMA cache_size").fetchone()
            assert -16 * 1024 <= size < 0, "in KiB"
    finally:
        opened.close()
