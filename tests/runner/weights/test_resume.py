"""Weights that a resumed run begins with."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import Experiment, ModelTable
from forge.errors import MachineError
from forge.records import PolicyVersion
from forge.runner.past import EarlierAttempts
from forge.runner.weights.resume import find_starting_weights, require_weights, sha256_of_weights
from forge.runner.weights.sync import TurnGate, WeightSync
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from forge.store.resume import LastState
from tests.runner.stages.desks import Recorder
from tests.runner.weights.syncs import FakeServing, new_dir, weight_sync

EXPERIMENT = Experiment.model_validate(
    {
        "name": "x",
        "model": {"init": "tiny"},
        "stage": [
            {"kind": "sft", "steps": 9, "learning_rate": 1e-3},
            {"kind": "grpo", "steps": 9, "learning_rate": 1e-5, "save_every": 4},
        ],
    }
)
STEPS = {0: 9, 1: 5}
"""Last step of each finished stage: sft-0 and grpo-1. Stage 2 has begun."""


def state_of(*policies: PolicyVersion, finished: tuple[int, ...] = ()) -> LastState:
    return LastState(
        attempt=1,
        group_id=-1,
        sample_id=-1,
        policy_version=max(policy.version for policy in policies),
        policies=tuple(reversed(policies)),
        steps={},
        finished_stages=finished,
    )


async def test_resume_continues_from_the_newest_whole_weights(tmp_path: Path) -> None:
    sync, sink = weight_sync(tmp_path, FakeServing())
    start = Weights(full=new_dir(tmp_path, "init"))
    steps = [(0, 9), (1, 3), (1, 4), (1, 5), (1, 6)]
    for stage, step in steps:
        path = new_dir(tmp_path, f"{'grpo' if stage else 'sft'}-{step}")
        await sync.publish(path, stage=stage, step=step, probe=None, keep=True)
    for name in (".grpo-7.partial", "mine"):
        new_dir(tmp_path, name)
    state = state_of(*(r for r in sink.records if isinstance(r, PolicyVersion)), finished=(0,))

    (tmp_path / "grpo-6" / "model.safetensors").write_bytes(b"cut short by a power cut")
    begin = find_starting_weights(start, state, EXPERIMENT, tmp_path)
    assert begin.weights == Weights(full=tmp_path / "grpo-5", version=11, full_version=11)
    assert (begin.step, begin.last_version) == (5, 12)
    strays = [path.name for path in begin.strays]
    assert strays == [".grpo-7.partial", "grpo-3", "grpo-5", "grpo-6"]

    sink: Any = Recorder()
    again = WeightSync(begin, attempt=2, precision="exact", gate=TurnGate(timeout_s=5), sink=sink)
    row = await again.publish(
        new_dir(tmp_path, "grpo-5.2"), stage=1, step=5, probe=None, keep=False
    )
    assert row.version == 13, "a number is never used again"
    assert {path.name for path in tmp_path.iterdir()} == {
        "init",
        "mine",
        "sft-9",
        "grpo-4",
        "grpo-5.2",
    }


async def test_weights_that_a_trainer_had_in_memory_are_no_start(tmp_path: Path) -> None:
    sync, sink = weight_sync(tmp_path, FakeServing())
    shared = tmp_path / "grpo-5"
    for step, path in ((4, new_dir(tmp_path, "grpo-4")), (5, shared)):
        if path == shared:
            shared.mkdir()
            (shared / "shared.json").write_text("{}")
        await sync.publish(path, stage=1, step=step, probe=None, keep=True)
    state = state_of(*(r for r in sink.records if isinstance(r, PolicyVersion)))
    begin = find_starting_weights(Weights(full=tmp_path / "init"), state, EXPERIMENT, tmp_path)
    assert (begin.weights.full, begin.step) == (tmp_path / "grpo-4", 4)
    assert begin.last_version == state.policy_version, "its number is not used again"


async def test_resume_fails_if_the_weights_of_a_finished_stage_are_damaged(tmp_path: Path) -> None:
    sync, sink = weight_sync(tmp_path, FakeServing())
    path = new_dir(tmp_path, "w")
    await sync.publish(path, stage=0, step=9, probe=None, keep=True)
    state = state_of(sink.records[0], finished=(0,))
    (path / "model.safetensors").unlink()
    with pytest.raises(MachineError, match=r"w: .* missing or damaged; put a copy"):
        find_starting_weights(Weights(full=tmp_path), state, EXPERIMENT, tmp_path)


async def test_an_adapter_keeps_its_base_checkpoint(tmp_path: Path) -> None:
    sync, sink = weight_sync(tmp_path, FakeServing())
    adapter = new_dir(tmp_path, "w")
    (adapter / "adapter_config.json").write_text("{}")
    await sync.publish(adapter, stage=0, step=9, probe=None, keep=True)
    assert sync.current == Weights(full=tmp_path, adapter=adapter, version=8)
    start = Weights(full=tmp_path / "init")
    begin = find_starting_weights(start, state_of(sink.records[0]), EXPERIMENT, tmp_path)
    assert begin.weights == Weights(full=tmp_path / "init", adapter=adapter, version=8)
    assert Weights.from_json(json.loads(json.dumps(begin.weights.to_json()))) == begin.weights


def test_a_stage_continues_on_the_model_where_it_is_now(tmp_path: Path) -> None:
    here, published = tmp_path / "here", tmp_path / "published"
    here.mkdir()
    published.mkdir()
    model = ModelTable(path=str(here))
    past = EarlierAttempts(
        stage_weights={
            0: Weights(full=Path("/gone/model")),
            1: Weights(full=Path("/gone/model"), adapter=published, version=3),
            2: Weights(full=published, version=4, full_version=4),
        }
    ).on_model(model, paths=RunPaths(tmp_path / "toy-1"))
    assert past.stage_weights == {
        0: Weights(full=here),
        1: Weights(full=here, adapter=published, version=3),
        2: Weights(full=published, version=4, full_version=4),
    }


def test_absent_weights_of_a_stage_that_continues_are_named(tmp_path: Path) -> None:
    policy = PolicyVersion(
        version=1, attempt=1, stage=0, step=9, path="w", sha256="", publish_s=0.0, probe_gap=0.0
    )
    state = state_of(policy, finished=(0,))
    gone = Weights(full=tmp_path / "gone", version=1, full_version=1)
    model, paths = ModelTable(init="tiny"), RunPaths(tmp_path / "toy-1")
    past = EarlierAttempts(state=state, stage_weights={0: gone})
    assert past.on_model(model, paths=paths).stage_weights == {0: gone}, "it has finished"
    past = EarlierAttempts(state=state, stage_weights={1: gone})
    with pytest.raises(MachineError, match=r"/gone: not there; stage 1 of toy-1 needs these wei"):
        past.on_model(model, paths=paths)
    published = Weights(full=paths.weights / "sft-9", version=1, full_version=1)
    past = EarlierAttempts(state=state, stage_weights={1: published})
    assert past.on_model(model, paths=paths).stage_weights == {1: published}, "see require_weights"


class Run:
    """A run whose third stage was interrupted."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)
        self.paths.weights.mkdir()
        self.dirs = [new_dir(self.paths.weights, name) for name in ("init", "sft-9", "grpo-5")]
        policies = tuple(
            PolicyVersion(
                version=stage + 1, attempt=1, stage=stage, step=step, path=str(path),
                sha256=sha256_of_weights(path), publish_s=0.1, probe_gap=0.0,
            )
            for (stage, step), path in zip(STEPS.items(), self.dirs[1:], strict=True)
        )  # fmt: skip
        self.state = LastState(
            attempt=1, group_id=-1, sample_id=-1, policy_version=2, policies=policies[::-1],
            steps={}, finished_stages=(0, 1),
        )  # fmt: skip
        self.weights = {i: Weights(full=path, version=i) for i, path in enumerate(self.dirs)}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_weights_that_a_stage_continues_with_must_be_whole(run: Run) -> None:
    require_weights(run.state, run.weights)
    shutil.rmtree(run.dirs[1])
    require_weights(run.state, run.weights)  # a finished stage began with these
    (run.dirs[2] / "model.safetensors").write_bytes(b"one byte")
    with pytest.raises(MachineError, match=r"weights/grpo-5: damaged; stage 2 began with these"):
        require_weights(run.state, run.weights)
    shutil.rmtree(run.dirs[2])
    with pytest.raises(MachineError, match=r"weights/grpo-5: missing; stage 2 began with these"):
        require_weights(run.state, run.weights)
