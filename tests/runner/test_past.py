"""Going back to a checkpoint, `forge resume --from`, and a new run from one, `forge run --fork`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from forge.config.load import load_experiment
from forge.errors import ConfigError, MachineError
from forge.records import Event, PolicyVersion
from forge.runner.fork import fork_run
from forge.runner.past import EarlierAttempts, back_to_step, hold_rows, load_past
from forge.serve.weights import Weights
from forge.store.layout import RunPaths, create_run
from forge.store.reader import open_run
from forge.store.write.writer import open_writer
from forge.train.batch import write_batch
from forge.train.checkpoints import checkpoint_dir, find_damage, write_manifest
from tests.runner.stages.desks import sample

if TYPE_CHECKING:
    from forge.config.schema import Experiment

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
    assert past.state is not None
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
    paths = fork_run("toy-1:3", overrides=["stage.1.learning_rate=1e-6"])
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
    assert past.state is not None
    assert past.missing is None, "its earlier rows are in the parent"
    assert past.state.finished_stages == (0,)
    assert [policy.path for policy in past.state.policies] == [str(paths.weights / "sft-000004")]
    assert past.stage_weights is not None
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
        ("toy-7:3", (), "no such run"),
        ("toy-1:5", (), "no checkpoint after step 5 of grpo-1; allowed: 3, 6"),
        ("toy-1:3", ("stage.1.steps=2",), "stage.1.steps: found 2; at least 3"),
    ],
)
def test_an_impossible_fork_makes_no_directory(
    parent: Parent, spec: str, overrides: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        fork_run(spec, overrides=overrides)
    assert [path.name for path in parent.paths.root.parent.iterdir()] == ["toy-1"]


def test_a_fork_of_an_earlier_stage_continues_that_one(parent: Parent) -> None:
    paths = fork_run("toy-1:4")
    past = load_past(paths, parent.experiment)
    assert past.state is not None
    assert past.state.finished_stages == ()
    assert list(past.stage_weights or {}) == [0]
