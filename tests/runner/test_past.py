"""Going back to a checkpoint, `forge resume --from`; a new run from one, `forge run --fork`; rows
that a run.db lacks are counted once, and no id that any file mentions is used again.
"""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.config.load import load_experiment
from forge.config.schema import EvalStage, Experiment, GrpoStage
from forge.errors import ConfigError, MachineError
from forge.records import Event, PolicyVersion, Status
from forge.runner.past import (
    EarlierAttempts,
    HeldRows,
    back_to_step,
    fork_run,
    hold_rows,
    load_past,
)
from forge.serve.weights import Weights
from forge.store.layout import RunPaths, create_run
from forge.store.reader import open_run
from forge.store.write.writer import open_writer
from forge.train.batch import write_batch
from forge.train.checkpoints import checkpoint_dir, find_damage, write_manifest
from tests.runner.stages.desks import sample
from tests.store.storefactory import attempt, group, samples, small_run, use, write_run

EXPERIMENT = """\
name = "toy"
[model]
init = "tiny"
[[stage]]
kind = "sft"
steps = 4
learning_rate = 1e-4
[[stage]]
kind = "grpo"
steps = 9
learning_rate = 1e-5
"""
STAGES = (EvalStage(kind="eval"), GrpoStage(kind="grpo", steps=3, learning_rate=1e-4))


class Parent:
    """A run whose grpo stage was interrupted after step 6, with checkpoints of 3 and 6."""

    def __init__(self, folder: Path) -> None:
        self.paths: RunPaths = create_run("toy", store_dir=folder / "runs")
        self.paths.experiment.write_text(EXPERIMENT)
        self.experiment: Experiment = load_experiment(self.paths.experiment)
        for name in ("init", "sft-000004", "grpo-000006"):
            (self.paths.weights / name).mkdir()
            (self.paths.weights / name / "model.safetensors").write_text(name)
        (self.paths.root / "data").mkdir()
        (self.paths.root / "data" / "pairs.jsonl").write_text("{}\n")
        for stage, step in ((0, 4), (1, 3), (1, 6)):
            target = checkpoint_dir(self.paths.checkpoints / f"stage-{stage}", step)
            target.mkdir(parents=True)
            (target / "optimizer.pt").write_text(f"{stage} {step}")
            write_manifest(target)
            if stage:
                path = self.paths.batches / f"1-{step:06d}.npz"
                write_batch(path, [sample(step)], state={"of": step})
        anyio.run(self._record)

    async def _record(self) -> None:
        weights = self.paths.weights
        start = {
            0: Weights(full=weights / "init"),
            1: Weights(full=weights / "sft-000004", version=1),
        }
        records: list[Any] = [
            Event(
                at=1.0, kind="stage_start", message="",
                data={"stage": stage, "weights": each.to_json(self.paths.record)},
            )
            for stage, each in start.items()
        ]  # fmt: skip
        records.append(Event(at=1.0, kind="stage_end", message="", data={"stage": 0}))
        records += [
            PolicyVersion(
                version=version, attempt=1, stage=stage, step=step, path=f"weights/{name}",
                sha256="", publish_s=0.1, probe_gap=0.0,
            )
            for version, stage, step, name in ((1, 0, 4, "sft-000004"), (5, 1, 6, "grpo-000006"))
        ]  # fmt: skip
        records.append(sample(9))
        async with open_writer(self.paths, self.experiment.store) as writer:
            await writer.put(*records)

    def back_to(self, step: int) -> EarlierAttempts:
        past = load_past(self.paths, self.experiment)
        return back_to_step(past, step, experiment=self.experiment, paths=self.paths)


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parent:
    monkeypatch.chdir(tmp_path)
    return Parent(tmp_path)


def test_going_back_forgets_later_weights_and_keeps_all_numbers(parent: Parent) -> None:
    past = parent.back_to(3)
    assert past.back_to == (1, 3)
    assert [policy.step for policy in past.state.policies] == [4]
    assert (past.state.policy_version, past.state.sample_id) == (5, 9)
    assert parent.back_to(0).back_to == (1, 0), "the beginning of the stage"


def test_going_back_needs_a_whole_checkpoint_of_that_step(parent: Parent) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoint after step 5 of grpo-1; allowed: 3, 6"):
        parent.back_to(5)
    (parent.paths.checkpoints / "stage-1" / "checkpoint-3" / "optimizer.pt").write_text("")
    with pytest.raises(MachineError, match=r"checkpoint-3: optimizer.pt: 0 of 3 bytes"):
        parent.back_to(3)


def test_a_finished_run_is_forked_instead(parent: Parent) -> None:
    async def finish() -> None:
        async with open_writer(parent.paths, parent.experiment.store) as writer:
            await writer.put(Event(at=2.0, kind="stage_end", message="", data={"stage": 1}))

    anyio.run(finish)
    with pytest.raises(ConfigError, match=r'"forge run --fork toy-1:3" begins a new run'):
        parent.back_to(3)


def test_a_fork_has_what_its_stage_needs_and_leaves_its_parent_as_it_was(parent: Parent) -> None:
    before = sorted(path for path in parent.paths.root.rglob("*") if path.suffix != ".db-shm")
    paths = fork_run("toy-1:3", store_dir=Path("runs"), overrides=["stage.1.learning_rate=1e-6"])
    assert paths.name == "toy-2"
    stage = load_experiment(paths.experiment).stage[1]
    assert stage.kind == "grpo"
    assert stage.learning_rate == 1e-6
    assert find_damage(checkpoint_dir(paths.checkpoints / "stage-1", 3)) == ""
    assert not checkpoint_dir(paths.checkpoints / "stage-1", 6).exists()
    assert sorted(path.name for path in paths.weights.iterdir()) == ["init", "sft-000004"]
    assert [path.name for path in paths.batches.iterdir()] == ["1-000003.npz"]
    assert (paths.root / "data" / "pairs.jsonl").exists()

    past = load_past(paths, parent.experiment)
    assert past.missing is None, "its earlier rows are in the parent"
    assert past.state.finished_stages == (0,)
    assert [policy.path for policy in past.state.policies] == [str(paths.weights / "sft-000004")]
    assert past.stage_weights[1].full == paths.weights / "sft-000004"
    with open_run(paths) as reader:
        (row,) = reader.rows("SELECT message, data FROM events WHERE kind = 'forked'")
        assert hold_rows(reader, parent.experiment.stage).is_whole
    assert row["message"] == "forked from toy-1 after step 3 of grpo-1"
    assert json.loads(row["data"])["parent"] == "toy-1"
    after = sorted(path for path in parent.paths.root.rglob("*") if path.suffix != ".db-shm")
    assert [path for path in after if path not in before and "wal" not in path.name] == []


@pytest.mark.parametrize(
    ("spec", "overrides", "words"),
    [
        ("toy-1", (), "found no RUN:STEP"),
        ("toy-1:x", (), "found no RUN:STEP"),
        pytest.param(f"toy-1:{'9' * 5000}", (), "found no RUN:STEP", id="too many digits"),
        ("toy-7:3", (), "no such run"),
        ("toy-1:5", (), "no checkpoint after step 5 of grpo-1; allowed: 3, 6"),
        ("toy-1:3", ("stage.1.steps=2",), "stage.1.steps: found 2; at least 3"),
    ],
)
def test_an_impossible_fork_makes_no_directory(
    parent: Parent, spec: str, overrides: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        fork_run(spec, store_dir=Path("runs"), overrides=overrides)
    assert [path.name for path in parent.paths.root.parent.iterdir()] == ["toy-1"]


def test_a_fork_of_an_earlier_stage_continues_that_one(parent: Parent) -> None:
    paths = fork_run("toy-1:4", store_dir=Path("runs"))
    past = load_past(paths, parent.experiment)
    assert past.state.finished_stages == ()
    assert list(past.stage_weights or {}) == [0]


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


async def test_missing_rows_are_counted_and_ids_begin_above_every_file(tmp_path: Path) -> None:
    root = await lose_rows(tmp_path)
    (root / "batches" / "1-000004.npz").write_bytes(b"PK damaged")
    held = hold(root)
    assert not held.is_whole
    assert held.describe() == "24 turns, 1 samples, 1 commits, steps 1 to 2 of grpo-1"
    assert (held.state.group_id, held.state.sample_id, held.state.policy_version) == (30, 90, 3)
    event = held.to_event(root / "run.db")
    assert "\n" not in event.message
    assert json.loads(json.dumps(event.data))["sample_id"] == 90


async def test_a_batch_proves_samples_of_a_run_that_was_never_counted(tmp_path: Path) -> None:
    root = await lose_rows(tmp_path)
    (root / "acknowledged").unlink()
    held = hold(root)
    assert held.missing == {"turns": 0, "samples": 1, "commits": 0}


async def test_a_recorded_loss_is_not_reported_again(tmp_path: Path) -> None:
    root = await lose_rows(tmp_path)
    await write_run(root, [attempt(2), hold(root).to_event(root / "run.db")])
    held = hold(root)
    assert held.is_whole
    assert (held.state.group_id, held.state.sample_id, held.state.policy_version) == (30, 90, 3)
    later = samples(group(31, [[Status.WRONG]]), first_id=91)
    write_batch(root / "batches" / "1-000005.npz", later)
    assert hold(root).missing["samples"] == 1, "a loss after it is reported"
    await write_run(root, [*later, *(use(sample, step=2) for sample in later)])
    assert hold(root).is_whole


async def test_commits_that_a_damaged_wal_lost_are_counted(tmp_path: Path) -> None:
    root, killed = tmp_path / "toy-1", tmp_path / "killed"
    await write_run(root, small_run())
    reading = sqlite3.connect(root / "run.db", isolation_level=None)
    with closing(reading):
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM events").fetchone()  # keeps the WAL
        for number in range(3):
            await write_run(root, [Event(at=1.0, kind="x", message=str(number))])
        shutil.copytree(root, killed)
    assert hold(killed).is_whole
    wal = killed / "run.db-wal"
    damaged = bytearray(wal.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    wal.write_bytes(damaged)
    assert 1 <= hold(killed).missing["commits"] <= 3
    assert hold(killed).missing["turns"] == 0
