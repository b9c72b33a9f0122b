"""Rows that a run.db lacks are counted once, and no id that any file mentions is used again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forge.config.schema import EvalStage, GrpoStage
from forge.records import Status
from forge.runner.past import HeldRows, hold_rows
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.train.batch import write_batch
from tests.store.storefactory import attempt, group, samples, small_run, use, write_run

STAGES = (
    EvalStage(kind="eval"),
    GrpoStage(kind="grpo", steps=3, learning_rate=1e-4),
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def hold(root: Path) -> HeldRows:
    with open_run(root) as reader:
        return hold_rows(reader, STAGES)


async def lose_rows(folder: Path) -> Path:
    """A run whose run.db is older than its last rows, batch and checkpoint."""
    root, older = folder / "toy-1", folder / "older.db"
    await write_run(root, [attempt()])
    shutil.copy(root / "run.db", older)
    await write_run(root, small_run())
    shutil.copy(older, root / "run.db")
    paths = RunPaths(root)
    paths.batches.mkdir()
    write_batch(paths.batches / "1-000003.npz", samples(group(30, [[Status.WRONG]]), first_id=90))
    (paths.checkpoints / "stage-1" / "checkpoint-2").mkdir(parents=True)
    return root


async def test_a_whole_run_lacks_nothing(tmp_path: Path) -> None:
    root = await write_run(tmp_path / "toy-1", small_run())
    held = hold(root)
    assert held.is_whole
    assert (held.state.group_id, held.state.sample_id) == (7, 17)


async def test_missing_rows_are_counted_and_ids_begin_above_every_file(tmp_path: Path) -> None:
    root = await lose_rows(tmp_path)
    (root / "batches" / "1-000004.npz").write_bytes(b"PK damaged")
    held = hold(root)
    assert not held.is_whole
    assert held.describe() == "24 turns, 18 samples, 3 policy versions, steps 1 to 2 of grpo-1"
    assert (held.state.group_id, held.state.sample_id, held.state.policy_version) == (30, 90, 3)
    event = held.to_event(root / "run.db")
    assert "\n" not in event.message
    assert json.loads(json.dumps(event.data))["sample_id"] == 90


async def test_a_batch_proves_samples_of_a_run_that_was_never_counted(tmp_path: Path) -> None:
    root = await lose_rows(tmp_path)
    (root / "acknowledged").unlink()
    held = hold(root)
    assert (held.turns, held.samples) == (0, 1)


async def test_a_recorded_loss_is_not_reported_again(tmp_path: Path) -> None:
    root = await lose_rows(tmp_path)
    await write_run(root, [attempt(2), hold(root).to_event(root / "run.db")])
    held = hold(root)
    assert held.is_whole
    assert (held.state.group_id, held.state.sample_id, held.state.policy_version) == (30, 90, 3)
    later = samples(group(31, [[Status.WRONG]]), first_id=91)
    write_batch(root / "batches" / "1-000005.npz", later)
    assert hold(root).samples == 1, "a loss after it is reported"
    await write_run(root, [*later, *(use(sample, step=2) for sample in later)])
    assert hold(root).is_whole


async def test_a_commit_that_nobody_counted_and_a_damaged_wal_lost_is_reported(
    tmp_path: Path,
) -> None:
    root = await write_run(tmp_path / "toy-1", small_run())
    with closing(sqlite3.connect(root / "run.db")) as live:
        live.execute("PRAGMA wal_autocheckpoint = 0")
        live.execute("INSERT INTO events (at, kind, message, data) VALUES (0, 'x', 'y', '{}')")
        live.commit()
        killed = tmp_path / "killed"
        shutil.copytree(root, killed)  # before `close` copies the WAL
    wal = killed / "run.db-wal"
    damaged = bytearray(wal.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    wal.write_bytes(damaged)
    held = hold(killed)
    assert not held.is_whole
    assert held.describe() == "at least 1 of the commits in run.db-wal"
