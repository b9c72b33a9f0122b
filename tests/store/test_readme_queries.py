"""The README's queries answer in stock sqlite3, on a run with plain texts."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import anyio
import pytest

from tests.store.storefactory import small_run, write_run

README = Path(__file__).parents[2] / "README.md"
QUERIES = re.findall(r"^```sql\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.fixture(scope="module")
def run_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("readme") / "toy-1"
    anyio.run(write_run, root, small_run())
    return root / "run.db"


def ask(path: Path, query: str) -> str:
    """Runs the sqlite3 program, or without one a bare connection."""
    program = shutil.which("sqlite3")
    if program is None:
        connection = sqlite3.connect(path)
        rows = connection.execute(query).fetchall()
        connection.close()
        return str(rows or "")
    done = subprocess.run([program, "-readonly", str(path), query], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("query", QUERIES)
def test_a_readme_query_answers_in_stock_sqlite3(run_db: Path, query: str) -> None:
    assert ask(run_db, query).strip()


def test_the_readme_queries_pass_rate_failures_and_best_kernels() -> None:
    text = "\n".join(QUERIES)
    assert all(view in text for view in ("v_steps", "v_failures", "v_best_kernels"))
