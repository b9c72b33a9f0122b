"""The trainer's desk: takes, acknowledgements, waiting time, trainers that die, and its states."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.errors import MachineError
from forge.records import Metrics, SampleUse
from forge.rollout.batches import Batch
from forge.runner.live.progress import Progress
from forge.runner.stages import desk as desk_module
from forge.runner.stages.desk import TrainerDesk, TrainerState
from forge.runner.stages.grpo import _offer
from tests.runner.stages.desks import Recorder, batch, make_desk


async def test_a_trainer_gets_the_batch_after_its_own_step(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    await desk.offer(batch(1))
    await desk.offer(batch(2))
    assert (await desk.take(1))["step"] == 2
    assert (await desk.take(0))["step"] == 1
    assert await desk.take(3) == {"kind": "done"}


async def test_take_waits_for_a_batch_and_answers_wait_if_none_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "TAKE_WAIT_S", 0.01)
    desk = make_desk(tmp_path)
    assert await desk.take(0) == {"kind": "wait"}
    monkeypatch.setattr(desk_module, "TAKE_WAIT_S", 5.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.offer, batch(1))
        assert (await desk.take(0))["kind"] == "batch"


async def test_a_trainer_that_needs_a_batch_that_is_gone_is_told_so_and_does_not_wait(
    tmp_path: Path,
) -> None:
    desk = make_desk(tmp_path)
    for step in (1, 2):
        await desk.offer(batch(step))
    (tmp_path / "3-000002.npz").unlink()
    with pytest.raises(MachineError, match=r'/3-000002.npz: missing; "forge resume" plays'):
        await desk.take(1)
    after = make_desk(tmp_path)
    assert after.shelf.recover(after=1) == ""
    with pytest.raises(MachineError, match=r"/3-000001.npz: missing"):
        await after.take(0)


async def test_an_acknowledged_step_records_uses_with_staleness_and_metrics(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    await desk.offer(batch(1))
    await desk.trained(1, {"train/loss/mean": 0.5})
    use, metrics = records_of(desk)
    assert isinstance(use, SampleUse)
    assert (use.staleness, use.step, use.stage) == (0, 1, 3)
    assert isinstance(metrics, Metrics)
    assert metrics.values == {"train/loss/mean": 0.5}


async def test_a_batch_is_offered_only_after_run_db_has_its_samples(tmp_path: Path) -> None:
    """After a kill in between, a resumed run would give out the ids in the batch file again, and
    the metrics of the batch would be missing."""
    did: list[str] = []

    class Writer(Recorder):
        async def flush(self) -> None:
            did.append("flush")
            assert not list(tmp_path.iterdir())

        async def put(self, *records: Any) -> None:
            did.append("put")

    send, receive = anyio.create_memory_object_stream[Batch](1)
    await send.send(batch(1))
    send.close()
    weights = SimpleNamespace(step_of=lambda version, stage: {4: 7}[version])
    run: Any = SimpleNamespace(writer=Writer(), weights=weights)
    desk = make_desk(tmp_path)
    await _offer(run, desk, receive)
    assert did == ["put", "flush"]
    assert (tmp_path / "3-000001.npz").exists()
    assert desk.steps == {4: 7}, "known before its publish ends"


async def test_a_held_trainer_gets_its_batch_on_release_and_was_idle_meanwhile(
    tmp_path: Path,
) -> None:
    desk, answers = make_desk(tmp_path), []
    await desk.offer(batch(1))
    desk.hold()

    async def take() -> None:
        answers.append(await desk.take(0))

    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await anyio.sleep(0.02)
        assert answers == []
        assert desk.idle_s(time.monotonic()) >= 0.01  # while it still waits
        desk.release()
    assert answers[0]["kind"] == "batch"
    assert 0.01 <= desk.idle_s(time.monotonic() + 9) <= time.monotonic() - began


def test_idle_seconds_are_counted_per_step_for_the_roles_that_work_in_the_stage() -> None:
    progress = Progress(run="x-1", num_stages=1)
    progress.enter("grpo-0", stage=0, total=3, unit="steps", busy={"serve": 5.0})
    began = progress.stage_started_at
    first = progress.end_step({"serve": 15.0, "trainer": 2.0}, now=began + 10)
    second = progress.end_step({"serve": 16.0, "trainer": 6.0}, now=began + 14)
    assert first == pytest.approx(
        {"step/wall/seconds": 10.0, "idle/serve/seconds": 0.0, "idle/trainer/seconds": 8.0}
    )
    assert second == pytest.approx(
        {"step/wall/seconds": 4.0, "idle/serve/seconds": 3.0, "idle/trainer/seconds": 0.0}
    )
    busy = {"serve": 5.0, "trainer": 0.0}
    progress.enter("sft-0", stage=0, total=3, unit="steps", busy=busy, roles=["trainer"])
    found = progress.end_step({"serve": 5.0, "trainer": 7.0}, now=progress.stage_started_at + 10)
    assert found == pytest.approx({"step/wall/seconds": 10.0, "idle/trainer/seconds": 3.0})


@pytest.mark.parametrize("is_held", [False, True])
async def test_every_take_after_a_stop_is_answered_with_stop(tmp_path: Path, is_held: bool) -> None:
    desk = make_desk(tmp_path)
    await desk.offer(batch(1))
    if is_held:
        desk.hold()
    desk.stop()
    assert await desk.take(0) == {"kind": "stop"}


async def test_an_acknowledgement_of_a_dead_trainer_does_not_stop_its_successor_from_starting(
    tmp_path: Path,
) -> None:
    desk = make_desk(tmp_path)
    await desk.offer(batch(1))
    await desk.take(0)
    desk.trainer_ended()
    desk.trainer_starts()
    await desk.trained(1, {})
    assert desk.state is TrainerState.STARTING


async def test_only_the_newest_take_gets_the_batch(tmp_path: Path) -> None:
    """A trainer has one take at a time: an older one is left over from a closed connection."""
    desk, old = make_desk(tmp_path), list[dict[str, Any]]()

    async def take() -> None:
        old.append(await desk.take(0))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(desk.offer, batch(1))
        assert (await desk.take(0))["kind"] == "batch"
    assert old == [{"kind": "wait"}]
    assert (desk.state, desk.num_handed_out) == (TrainerState.TRAINING, 1)


async def saved(step: int, shelf: object) -> int:
    """The newest checkpoint is the oldest that may be continued."""
    return step


def records_of(desk: TrainerDesk) -> list[Any]:
    writer: Any = desk._run.writer
    return writer.records


async def test_a_batch_without_a_checkpoint_is_offered_again_after_a_crash(tmp_path: Path) -> None:
    first = make_desk(tmp_path)
    for step in (1, 2):
        await first.offer(batch(step))
        await first.trained(step, {"train/loss/mean": 1.0})
    second = make_desk(tmp_path)
    assert second.shelf.recover(after=1, trained=2) == ""
    assert (await second.take(1))["step"] == 2


async def test_staleness_counts_steps_even_if_a_restart_publishes_one_again(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    await desk.offer(batch(3))
    desk.steps.update({4: 1, 5: 2, 6: 0, 7: 1, 8: 2})  # version 4 sampled what step 3 trains
    await desk.trained(3, {})
    assert records_of(desk)[0].staleness == 1
