"""Publishes of weights: verified, numbered, recorded, and in order with turns; and the weights
that a resumed run begins with."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from forge.config.schema import Experiment, ModelTable
from forge.errors import ChildDied, MachineError, Stalled
from forge.records import Event, PolicyVersion
from forge.runner.past import EarlierAttempts
from forge.runner.weights.resume import (
    StartingWeights,
    find_starting_weights,
    require_weights,
    sha256_of_weights,
)
from forge.runner.weights.sync import Probe, TurnGate, Turnover, WeightSync, choose_turnover
from forge.serve.port import OLD_ADAPTERS, PREFIX_CACHE
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from forge.store.resume import LastState
from tests.runner.stages.desks import Recorder
from tests.serve.made_up_replicas import Client, made_up_replicas

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


@pytest.mark.parametrize("turnover", Turnover)
async def test_versions_are_numbered_by_publish_and_recorded(
    turnover: Turnover, tmp_path: Path
) -> None:
    serving = FakeServing()
    sync, sink = weight_sync(tmp_path, serving)
    sync.gate.turnover = turnover
    for step in (1, 2):
        await sync.publish(
            new_dir(tmp_path, f"w{step}"), stage=3, step=step, probe=PROBE, keep=True
        )
    rows = [r for r in sink.records if isinstance(r, PolicyVersion)]
    assert [r.version for r in rows] == [8, 9]
    assert rows[0].sha256 != rows[1].sha256
    assert rows[0].probe_gap == 0.0
    assert sync.current == Weights(full=tmp_path / "w2", version=9, full_version=9)
    assert serving.rolled == [turnover is Turnover.ROLLING] * 2, "one replica after the other"


@pytest.mark.parametrize(
    ("precision", "before", "is_behind"),
    [
        ("fast", [-0.991, -2.009], True),
        ("fast", [-1.0, -2.0], False),
        ("fast", [-0.98, -2.02], False),
        ("fast", None, False),
        ("exact", None, True),
    ],
    ids=["nearer to the old", "a step of nothing", "no nearer", "no old", "beyond the limit"],
)
async def test_a_replica_nearer_to_the_old_weights_is_behind_and_rounding_is_not(
    tmp_path: Path, precision: Literal["exact", "fast"], before: list[float] | None, is_behind: bool
) -> None:
    """The engine is 0.008 off: since it computes in bf16, or since it serves the old weights."""
    serving = FakeServing(behind=1)
    sync, sink = weight_sync(tmp_path, serving, precision=precision)
    probe = PROBE.model_copy(update={"before": before})
    await sync.publish(new_dir(tmp_path, "w"), stage=3, step=1, probe=probe, keep=True)
    assert serving.published == ([8, 8] if is_behind else [8])
    assert bool([r for r in sink.records if isinstance(r, Event)]) is is_behind


async def test_a_replica_that_stays_behind_in_bf16_ends_the_run(tmp_path: Path) -> None:
    class Stuck(FakeServing):
        async def probe(self, prompt_ids: Any, completion_ids: Any) -> list[list[float]]:
            return [[-0.992, -2.008]]

    sync, _ = weight_sync(tmp_path, Stuck(), precision="fast")
    probe = PROBE.model_copy(update={"before": [-0.99, -2.01]})
    with pytest.raises(ChildDied, match=r"other weights.*0\.008.*0\.002 to the weights before"):
        await sync.publish(new_dir(tmp_path, "w"), stage=3, step=1, probe=probe, keep=True)


async def test_a_replica_that_acknowledged_without_loading_gets_the_weights_again(
    tmp_path: Path,
) -> None:
    client = Client()
    client.failures = [None]
    sync, _ = weight_sync(tmp_path, made_up_replicas(tmp_path, client))
    probe = Probe(prompt_ids=[1], completion_ids=[2, 3], logprobs=[0.0, 0.0])
    row = await sync.publish(new_dir(tmp_path, "new"), stage=3, step=1, probe=probe, keep=True)
    assert client.loads == [("new", 8), ("new", 8)]
    assert row.probe_gap == 0.0


async def test_a_directory_is_deleted_only_once_its_successor_is_stored(tmp_path: Path) -> None:
    sync, sink = weight_sync(tmp_path, FakeServing())
    first = new_dir(tmp_path, "w1")
    await sync.publish(first, stage=3, step=1, probe=None, keep=False)
    is_whole_at_flush: list[bool] = []

    async def flush() -> None:
        is_whole_at_flush.append(first.exists() and sink.records[-1].step == 2)

    sink.flush = flush
    second = new_dir(tmp_path, "w2")
    await sync.publish(second, stage=3, step=2, probe=None, keep=True)
    assert is_whole_at_flush == [True]
    assert not first.exists()
    await sync.publish(new_dir(tmp_path, "w3"), stage=3, step=3, probe=None, keep=False)
    assert second.exists(), "kept"


async def test_a_publish_waits_for_running_turns_and_holds_back_new_ones() -> None:
    gate, order = TurnGate(timeout_s=5), []

    async def turn(name: str, started: anyio.Event, end: anyio.Event) -> None:
        async with gate.turn():
            order.append(f"{name} begins")
            started.set()
            await end.wait()
            order.append(f"{name} ends")

    async def publish() -> None:
        async with gate.publish():
            order.append("publish")

    events = [anyio.Event() for _ in range(4)]
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turn, "old", events[0], events[1])
            await events[0].wait()
            tasks.start_soon(publish)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(turn, "new", events[2], events[3])
            await anyio.wait_all_tasks_blocked()
            events[1].set()
            await events[2].wait()
            events[3].set()
    assert order == ["old begins", "old ends", "publish", "new begins", "new ends"]


async def test_only_pinned_turns_exclude_a_publish_if_replicas_keep_the_turn_boundary(
    tmp_path: Path,
) -> None:
    sync, _ = weight_sync(tmp_path, FakeServing())
    sync.gate.turnover = Turnover.ROLLING
    gate, order = sync.gate, []
    async with gate.turn(), gate.publish():
        async with gate.turn():
            order.append("turn")
        with anyio.move_on_after(0.02) as scope:
            async with gate.pinned():
                order.append("pinned")
    assert order == ["turn"]
    assert scope.cancelled_caught
    async with gate.pinned():
        with anyio.move_on_after(0.02) as scope:
            async with gate.publish():
                order.append("publish")
    assert scope.cancelled_caught
    assert order == ["turn"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, Turnover.STOP),
        ({"num_replicas": 2}, Turnover.ROLLING),
        ({"in_flight": "keep"}, Turnover.LIVE),
        ({"is_adapter": True}, Turnover.STOP),
        ({"is_adapter": True, "features": {OLD_ADAPTERS}}, Turnover.LIVE),
        ({"is_adapter": False, "features": {OLD_ADAPTERS}, "num_replicas": 2}, Turnover.ROLLING),
        ({"max_staleness": 0, "in_flight": "keep", "num_replicas": 2}, Turnover.STOP),
    ],
)
def test_the_turnover_that_delays_generation_least_is_chosen(
    changed: dict[str, Any], expected: Turnover
) -> None:
    facts: dict[str, Any] = {
        "max_staleness": 1, "in_flight": "turn", "is_adapter": False, "num_replicas": 1,
        "features": {PREFIX_CACHE},
    }  # fmt: skip
    assert choose_turnover(**{**facts, **changed}) is expected


async def test_a_publish_waits_for_a_long_turn_that_reports_progress() -> None:
    gate = TurnGate(timeout_s=0.05)
    async with anyio.create_task_group() as tasks:

        async def evaluation() -> None:
            async with gate.turn():
                for _ in range(12):
                    await anyio.sleep(0.01)
                    await gate.report_progress()

        tasks.start_soon(evaluation)
        await anyio.wait_all_tasks_blocked()
        async with gate.publish():
            pass


async def test_a_publish_stalls_if_a_running_turn_is_silent() -> None:
    gate = TurnGate(timeout_s=0.05)
    async with gate.turn():
        with pytest.raises(Stalled, match="running turns to end"):
            async with gate.publish():
                raise AssertionError("unreachable")


PROBE = Probe(prompt_ids=[1], completion_ids=[2, 3], logprobs=[-1.0, -2.0])


class FakeServing:
    """Replicas whose answers lag `behind` publishes behind what they acknowledge."""

    def __init__(self, *, behind: int = 0) -> None:
        self.behind = behind
        self.published: list[int] = []
        self.rolled: list[bool] = []

    async def publish(self, path: Path, version: int, *, rolling: bool = False) -> None:
        self.published.append(version)
        self.rolled.append(rolling)

    async def probe(self, prompt_ids: Any, completion_ids: Any) -> list[list[float]]:
        lag = 0.008 * self.behind
        self.behind = max(self.behind - 1, 0)
        return [[-1.0, -2.0], [-1.0 + lag, -2.0 - lag]]


def weight_sync(
    tmp_path: Path, serving: Any, *, precision: Literal["exact", "fast"] = "exact"
) -> tuple[WeightSync, Recorder]:
    sink: Any = Recorder()
    sync = WeightSync(
        StartingWeights(weights=Weights(full=tmp_path, version=7), last_version=7),
        attempt=1,
        precision=precision,
        gate=TurnGate(timeout_s=5),
        sink=sink,
    )
    sync.serving = serving
    return sync, sink


def new_dir(tmp_path: Path, name: str) -> Path:
    (tmp_path / name).mkdir()
    (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    return tmp_path / name
