"""Publishing: at turn boundaries, numbered, and a replica that lags behind is noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from forge.config.schema import Experiment
from forge.errors import ChildDied, MachineError, Stalled
from forge.records import Event, PolicyVersion
from forge.runner.weights.gate import TurnGate, Turnover, choose_turnover
from forge.runner.weights.probe import Probe
from forge.runner.weights.resume import StartingWeights, find_starting_weights
from forge.runner.weights.sync import Serving, WeightSync
from forge.serve.port import LORA, OLD_ADAPTERS
from forge.serve.weights import Weights
from forge.store.resume import LastState
from tests.serve.made_up_replicas import Client, made_up_replicas

pytestmark = pytest.mark.anyio
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


class Recorder:
    def __init__(self) -> None:
        self.records: list[Any] = []

    async def put(self, *records: Any) -> None:
        self.records += records

    async def flush(self) -> None:
        """Everything put is on disk."""


def weight_sync(
    tmp_path: Path,
    serving: Serving,
    *,
    precision: Literal["exact", "fast"] = "exact",
    on_gpu: bool = False,
) -> tuple[WeightSync, Recorder]:
    sink = Recorder()
    sync = WeightSync(
        StartingWeights(weights=Weights(full=tmp_path, version=7), last_version=7),
        attempt=1,
        precision=precision,
        gate=TurnGate(timeout_s=5),
        sink=sink,
        on_gpu=on_gpu,
    )
    sync.serving = serving
    return sync, sink


def new_dir(tmp_path: Path, name: str) -> Path:
    (tmp_path / name).mkdir()
    (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    return tmp_path / name


async def test_versions_are_numbered_by_publish_and_recorded(tmp_path: Path) -> None:
    sync, sink = weight_sync(tmp_path, FakeServing())
    for step in (1, 2):
        await sync.publish(
            new_dir(tmp_path, f"w{step}"), stage=3, step=step, probe=PROBE, keep=True
        )
    rows = [r for r in sink.records if isinstance(r, PolicyVersion)]
    assert [r.version for r in rows] == [8, 9]
    assert rows[0].sha256 != rows[1].sha256
    assert rows[0].probe_gap == 0.0
    assert sync.current == Weights(full=tmp_path / "w2", version=9, full_version=9)


async def test_a_replica_one_version_behind_fails_the_probe(tmp_path: Path) -> None:
    sync, _ = weight_sync(tmp_path, FakeServing(behind=2))
    with pytest.raises(ChildDied, match=r"version 8.*other weights.*0\.008"):
        await sync.publish(new_dir(tmp_path, "w"), stage=3, step=1, probe=PROBE, keep=True)
    assert sync.version == 7


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
async def test_rounding_is_told_from_old_weights_by_which_are_nearer(
    tmp_path: Path, precision: Literal["exact", "fast"], before: list[float] | None, is_behind: bool
) -> None:
    """The engine is 0.008 off: since it computes in bf16, or since it serves the old weights."""
    serving = FakeServing(behind=1)
    sync, sink = weight_sync(tmp_path, serving, precision=precision)
    probe = replace(PROBE, before=before)
    await sync.publish(new_dir(tmp_path, "w"), stage=3, step=1, probe=probe, keep=True)
    assert serving.published == ([8, 8] if is_behind else [8])
    assert bool([r for r in sink.records if isinstance(r, Event)]) is is_behind


@pytest.mark.parametrize(("on_gpu", "num_publishes"), [(False, 2), (True, 1)])
async def test_exact_precision_is_less_exact_on_a_gpu(
    tmp_path: Path, on_gpu: bool, num_publishes: int
) -> None:
    class Rounding(FakeServing):
        async def probe(self, prompt_ids: Any, completion_ids: Any) -> list[list[float]]:
            off = 0.002 if len(self.published) == 1 else 0.0
            return [[-1.0 + off, -2.0 - off]]

    serving = Rounding()
    sync, _ = weight_sync(tmp_path, serving, on_gpu=on_gpu)
    await sync.publish(new_dir(tmp_path, "w"), stage=3, step=1, probe=PROBE, keep=True)
    assert len(serving.published) == num_publishes


async def test_a_replica_that_stays_behind_in_bf16_ends_the_run(tmp_path: Path) -> None:
    class Stuck(FakeServing):
        async def probe(self, prompt_ids: Any, completion_ids: Any) -> list[list[float]]:
            return [[-0.992, -2.008]]

    sync, _ = weight_sync(tmp_path, Stuck(), precision="fast")
    probe = replace(PROBE, before=[-0.99, -2.01])
    with pytest.raises(ChildDied, match=r"other weights.*0\.008.*0\.002 to the weights before"):
        await sync.publish(new_dir(tmp_path, "w"), stage=3, step=1, probe=probe, keep=True)


async def test_a_replica_that_catches_up_is_published_to_once_more(tmp_path: Path) -> None:
    serving = FakeServing(behind=1)
    sync, sink = weight_sync(tmp_path, serving)
    await sync.publish(new_dir(tmp_path, "w"), stage=3, step=1, probe=PROBE, keep=True)
    assert serving.published == [8, 8]
    assert [r.kind for r in sink.records if isinstance(r, Event)] == ["probe_failed"]


async def test_a_replica_that_acknowledged_and_did_not_load_gets_the_weights_a_second_time(
    tmp_path: Path,
) -> None:
    client = Client()
    client.failures = [None]
    sync, _ = weight_sync(tmp_path, made_up_replicas(tmp_path, client))
    probe = Probe(prompt_ids=[1], completion_ids=[2, 3], logprobs=[0.0, 0.0])
    row = await sync.publish(new_dir(tmp_path, "new"), stage=3, step=1, probe=probe, keep=True)
    assert client.loads == [("new", 8), ("new", 8)]
    assert row.probe_gap == 0.0


async def test_weights_that_nobody_keeps_go_when_the_next_version_serves(tmp_path: Path) -> None:
    sync, _ = weight_sync(tmp_path, FakeServing())
    first, second = new_dir(tmp_path, "w1"), new_dir(tmp_path, "w2")
    await sync.publish(first, stage=3, step=1, probe=None, keep=False)
    assert first.exists()
    await sync.publish(second, stage=3, step=2, probe=None, keep=True)
    assert not first.exists()
    await sync.publish(new_dir(tmp_path, "w3"), stage=3, step=3, probe=None, keep=False)
    assert second.exists()


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


async def test_a_turn_passes_a_publish_where_replicas_see_to_the_boundary_and_what_is_pinned_not(
    tmp_path: Path,
) -> None:
    sync, _ = weight_sync(tmp_path, FakeServing())
    sync.turnover = Turnover.ROLLING
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


@pytest.mark.parametrize("turnover", Turnover)
async def test_replicas_are_rolled_where_the_turnover_says_so(
    turnover: Turnover, tmp_path: Path
) -> None:
    serving = FakeServing()
    sync, _ = weight_sync(tmp_path, serving)
    sync.turnover = turnover
    await sync.publish(new_dir(tmp_path, "w"), stage=3, step=1, probe=PROBE, keep=True)
    assert serving.rolled == [turnover is Turnover.ROLLING]


async def test_the_step_of_a_version_is_known_before_its_first_token(tmp_path: Path) -> None:
    known: list[int | None] = []

    class Serving(FakeServing):
        async def publish(self, path: Path, version: int, *, rolling: bool = False) -> None:
            known.append(sync.step_of(version, stage=3))

    sync, _ = weight_sync(tmp_path, Serving())
    await sync.publish(new_dir(tmp_path, "w"), stage=3, step=5, probe=None, keep=True)
    assert known == [5]
    assert sync.step_of(8, stage=2) is None
    assert sync.step_of(7, stage=3) is None


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
def test_the_turnover_that_holds_generation_up_least_is_chosen(
    changed: dict[str, Any], expected: Turnover
) -> None:
    facts: dict[str, Any] = {
        "max_staleness": 1, "in_flight": "turn", "is_adapter": False, "num_replicas": 1,
        "features": {LORA},
    }  # fmt: skip
    assert choose_turnover(**{**facts, **changed}) is expected


async def test_a_publish_waits_for_a_long_turn_as_long_as_it_is_heard_of() -> None:
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


async def test_a_publish_that_never_gets_its_turn_says_so() -> None:
    gate = TurnGate(timeout_s=0.05)
    async with gate.turn():
        with pytest.raises(Stalled, match="running turns to end"):
            async with gate.publish():
                raise AssertionError("unreachable")


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


async def test_a_directory_goes_only_once_its_successor_is_on_disk(tmp_path: Path) -> None:
    sync, sink = weight_sync(tmp_path, FakeServing())
    first = new_dir(tmp_path, "w1")
    await sync.publish(first, stage=3, step=1, probe=None, keep=False)
    is_whole_at_flush: list[bool] = []

    async def flush() -> None:
        is_whole_at_flush.append(first.exists() and sink.records[-1].step == 2)

    sink.flush = flush
    await sync.publish(new_dir(tmp_path, "w2"), stage=3, step=2, probe=None, keep=False)
    assert is_whole_at_flush == [True]
    assert not first.exists()


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


async def test_resume_goes_on_from_the_newest_whole_weights(tmp_path: Path) -> None:
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

    again = WeightSync(
        begin, attempt=2, precision="exact", gate=TurnGate(timeout_s=5), sink=Recorder()
    )
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


async def test_resume_does_not_fall_back_behind_a_finished_stage(tmp_path: Path) -> None:
    sync, sink = weight_sync(tmp_path, FakeServing())
    path = new_dir(tmp_path, "w")
    await sync.publish(path, stage=0, step=9, probe=None, keep=True)
    state = state_of(sink.records[0], finished=(0,))
    (path / "model.safetensors").unlink()
    with pytest.raises(MachineError, match=r"w: the weights to resume from are missing or damaged"):
        find_starting_weights(Weights(full=tmp_path), state, EXPERIMENT, tmp_path)


async def test_an_adapter_keeps_the_checkpoint_it_lies_on(tmp_path: Path) -> None:
    sync, sink = weight_sync(tmp_path, FakeServing())
    adapter = new_dir(tmp_path, "w")
    (adapter / "adapter_config.json").write_text("{}")
    await sync.publish(adapter, stage=0, step=9, probe=None, keep=True)
    assert sync.current == Weights(full=tmp_path, adapter=adapter, version=8)
    start = Weights(full=tmp_path / "init")
    begin = find_starting_weights(start, state_of(sink.records[0]), EXPERIMENT, tmp_path)
    assert begin.weights == Weights(full=tmp_path / "init", adapter=adapter, version=8)
    assert Weights.from_json(json.loads(json.dumps(begin.weights.to_json()))) == begin.weights
