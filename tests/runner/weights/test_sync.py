"""Publishes of weights: verified, numbered, recorded, and in order with turns."""

from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from forge.errors import ChildDied, Stalled
from forge.records import Event, PolicyVersion
from forge.runner.weights.sync import Probe, TurnGate, Turnover, choose_turnover
from forge.serve.port import OLD_ADAPTERS, PREFIX_CACHE
from forge.serve.weights import Weights
from tests.runner.weights.syncs import PROBE, FakeServing, new_dir, weight_sync
from tests.serve.made_up_replicas import Client, made_up_replicas


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
