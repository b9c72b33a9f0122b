"""The queries of the documents answer in stock sqlite3, on a run with plain texts."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from pathlib import Path

import anyio
import pytest

from tests.docs.pages import Block, read_blocks
from tests.store.storefactory import small_run, write_run

BLOCKS = read_blocks("sql")


@pytest.fixture(scope="module")
def run_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("docs") / "toy-1"
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


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_query_of_a_document_answers_in_stock_sqlite3(run_db: Path, block: Block) -> None:
    assert ask(run_db, block.text).strip()


def test_the_documents_query_pass_rate_failures_and_best_kernels() -> None:
    text = "\n".join(block.text for block in BLOCKS)
    assert all(view in text for view in ("v_steps", "v_failures", "v_best_kernels"))
