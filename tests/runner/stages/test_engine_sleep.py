"""Engines that sleep during training: asleep with every batch, awake for every publish."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from forge.runner.stages import desk as desk_module
from forge.runner.stages.desk import TrainerState
from forge.runner.stages.grpo import alternate_with_training
from forge.runner.weights.sync import TurnGate
from tests.runner.stages.desks import batch, make_desk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from forge.runner.stages.desk import TrainerDesk

pytestmark = pytest.mark.anyio


class Engines:
    def __init__(self) -> None:
        self.is_asleep = False
        self.slept = 0
        self.may_sleep = anyio.Event()
        self.may_sleep.set()

    async def sleep(self) -> None:
        await self.may_sleep.wait()
        self.is_asleep = True
        self.slept += 1

    async def wake(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.is_asleep = False


@asynccontextmanager
async def sleeping(
    desk: TrainerDesk, engines: Any, gate: TurnGate | None = None
) -> AsyncIterator[None]:
    gate = gate or TurnGate(timeout_s=5)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(alternate_with_training, engines, desk, gate)
            await anyio.wait_all_tasks_blocked()
            yield
            tasks.cancel_scope.cancel()


async def test_engines_sleep_with_a_batch_and_are_awake_between_steps(tmp_path: Path) -> None:
    desk, engines = make_desk(tmp_path), Engines()
    async with sleeping(desk, engines):
        for step in (1, 2):
            assert not engines.is_asleep, "turns run until there is a batch"
            await desk.offer(batch(step))
            assert (await desk.take(step - 1))["step"] == step
            assert engines.is_asleep
            await desk.trained(step, {})
            await desk.wait_until_awake()
            assert not engines.is_asleep, "a publish finds them awake"
    assert engines.slept == 2


async def test_no_batch_is_handed_out_while_engines_wake(tmp_path: Path) -> None:
    desk, engines = make_desk(tmp_path), Engines()
    async with sleeping(desk, engines):
        await desk.offer(batch(1))
        await desk.take(0)
        await desk.offer(batch(2))
        await desk.trained(1, {})
        await anyio.lowlevel.checkpoint()
        assert (await desk.take(1))["kind"] == "batch"
        assert engines.is_asleep


async def test_a_trainer_without_a_batch_leaves_the_engines_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "TAKE_WAIT_S", 0.01)
    desk, engines = make_desk(tmp_path), Engines()
    async with sleeping(desk, engines):
        assert await desk.take(0) == {"kind": "wait"}
        desk.hold()
        await desk.offer(batch(1))
        assert await desk.take(0) == {"kind": "wait"}, "an evaluation needs them"
        assert engines.slept == 0


async def test_a_batch_is_held_back_until_slow_engines_are_asleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "TAKE_WAIT_S", 0.01)
    desk, engines = make_desk(tmp_path), Engines()
    engines.may_sleep = anyio.Event()
    async with sleeping(desk, engines):
        await desk.offer(batch(1))
        assert await desk.take(0) == {"kind": "wait"}
        engines.may_sleep.set()
        await anyio.wait_all_tasks_blocked()
        assert (await desk.take(0))["kind"] == "batch"


async def test_a_restarted_trainer_gets_its_batch_again_with_the_engines_asleep(
    tmp_path: Path,
) -> None:
    desk, engines = make_desk(tmp_path), Engines()
    async with sleeping(desk, engines):
        await desk.offer(batch(1))
        assert (await desk.take(0))["kind"] == "batch"
        assert (await desk.take(0))["kind"] == "batch"
        assert engines.is_asleep


async def test_engines_wake_for_the_publish_after_a_trainer_died_in_a_step(
    tmp_path: Path,
) -> None:
    desk, engines = make_desk(tmp_path), Engines()
    async with sleeping(desk, engines):
        await desk.offer(batch(1))
        await desk.take(0)
        desk.trainer_ended()
        with desk.publishing():
            await desk.wait_until_awake()
            assert not engines.is_asleep
        assert (await desk.take(0))["kind"] == "batch"
        assert engines.is_asleep


async def test_engines_wake_for_the_publish_after_a_trainer_died_before_it_got_its_batch(
    tmp_path: Path,
) -> None:
    desk, engines = make_desk(tmp_path), Engines()
    engines.may_sleep = anyio.Event()
    async with sleeping(desk, engines), anyio.create_task_group() as dead:
        await desk.offer(batch(1))
        dead.start_soon(desk.take, 0)
        await anyio.wait_all_tasks_blocked()
        desk.trainer_ended()
        engines.may_sleep.set()
        await anyio.wait_all_tasks_blocked()
        assert desk.state is TrainerState.GONE, "nobody has the batch"
        with desk.publishing():
            await desk.wait_until_awake()
            assert not engines.is_asleep


async def test_engines_do_not_fall_asleep_during_a_publish_of_a_dead_trainer(
    tmp_path: Path,
) -> None:
    desk, engines = make_desk(tmp_path), Engines()
    async with sleeping(desk, engines), anyio.create_task_group() as tasks:
        with desk.publishing():
            await desk.offer(batch(1))
            tasks.start_soon(desk.take, 0)
            await anyio.wait_all_tasks_blocked()
            assert engines.slept == 0
        await anyio.wait_all_tasks_blocked()
        assert engines.slept == 1


async def test_a_turn_that_waited_for_sleeping_engines_begins_after_the_publish(
    tmp_path: Path,
) -> None:
    desk, engines, gate = make_desk(tmp_path), Engines(), TurnGate(timeout_s=5)
    order: list[str] = []

    async def play() -> None:
        async with gate.turn():
            order.append("turn")
            await anyio.sleep(0.01)

    async with sleeping(desk, engines, gate), anyio.create_task_group() as turns:
        await desk.offer(batch(1))
        await desk.take(0)
        turns.start_soon(play)
        await anyio.wait_all_tasks_blocked()
        await desk.trained(1, {})
        await anyio.wait_all_tasks_blocked()
        assert order == [], "the weights of step 1 have not been published"
        with desk.publishing():
            await desk.wait_until_awake()
            await anyio.wait_all_tasks_blocked()
            assert order == [], "also between waking and the publish"
            async with gate.publish():
                order.append("publish")
                await anyio.wait_all_tasks_blocked()
    assert order == ["publish", "turn"]


async def test_turns_continue_if_no_publish_follows_a_step(tmp_path: Path) -> None:
    desk, engines, gate = make_desk(tmp_path), Engines(), TurnGate(timeout_s=5)
    async with sleeping(desk, engines, gate), anyio.create_task_group() as tasks:
        await desk.offer(batch(1))
        await desk.take(0)
        await desk.trained(1, {})
        tasks.start_soon(desk.take, 1)
        async with gate.turn():
            await desk.offer(batch(2))


async def test_a_stage_that_ends_leaves_the_engines_awake(tmp_path: Path) -> None:
    desk, engines, gate = make_desk(tmp_path), Engines(), TurnGate(timeout_s=5)
    async with sleeping(desk, engines, gate):
        await desk.offer(batch(1))
        await desk.take(0)
        desk.stop()
        assert await desk.take(0) == {"kind": "stop"}
    assert not engines.is_asleep
    assert not desk.engines_sleep
    await desk.wait_until_awake()
    async with gate.turn():
        pass
