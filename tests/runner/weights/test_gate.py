"""The turn gate: publishes happen at turn boundaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.errors import Stalled
from forge.runner.weights.sync import TurnGate, Turnover, choose_turnover
from forge.serve.port import LORA, OLD_ADAPTERS
from tests.runner.weights.syncs import FakeServing, weight_sync

pytestmark = pytest.mark.anyio


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
        "features": {LORA},
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
