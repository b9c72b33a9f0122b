"""The trainer's desk: batches are durable, and offered again until a checkpoint covers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.records import Metrics, Sample, SampleUse
from forge.rollout.batches import Batch
from forge.runner import desk as desk_module
from forge.runner.desk import TrainerDesk

pytestmark = pytest.mark.anyio


class Recorder:
    def __init__(self) -> None:
        self.records: list[Any] = []

    async def put(self, *records: Any) -> None:
        self.records += records


def sample(sample_id: int, *, version: int = 4) -> Sample:
    return Sample(
        sample_id=sample_id,
        group_id=1,
        rollout=0,
        turn=0,
        prompt_ids=(1, 2),
        completion_ids=(3,),
        logprobs=(-0.5,),
        advantage=0.25,
        policy_version=version,
    )


def batch(step: int) -> Batch:
    return Batch(
        step=step, groups=(), samples=(sample(step),), sampler_state={"epoch": 0, "position": 1}
    )


def make_desk(path: Path) -> TrainerDesk:
    return TrainerDesk(stage=3, last_step=3, batches_dir=path, sink=Recorder())


async def test_a_trainer_gets_the_batch_after_its_own_step(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    await desk.offer(batch(1))
    await desk.offer(batch(2))
    assert (await desk.take(1))["step"] == 2
    assert (await desk.take(0))["step"] == 1
    assert await desk.take(3) == {"kind": "done"}


async def test_take_waits_for_a_batch_and_says_so_when_none_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "TAKE_WAIT_S", 0.01)
    desk = make_desk(tmp_path)
    assert await desk.take(0) == {"kind": "wait"}
    monkeypatch.setattr(desk_module, "TAKE_WAIT_S", 5.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.offer, batch(1))
        assert (await desk.take(0))["kind"] == "batch"


async def test_what_was_taken_but_not_checkpointed_is_offered_again_after_a_crash(
    tmp_path: Path,
) -> None:
    first = make_desk(tmp_path)
    for step in (1, 2):
        await first.offer(batch(step))
        await first.trained(step, {"train/loss/mean": 1.0}, version=5)
    first.checkpointed(1)
    second = make_desk(tmp_path)
    assert second.recover() == 2
    assert (await second.take(1))["step"] == 2
    assert not (tmp_path / "3-000001.npz").exists()


async def test_an_acknowledged_step_records_uses_with_staleness_and_metrics(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    await desk.offer(batch(1))
    await desk.trained(1, {"train/loss/mean": 0.5}, version=5)
    assert isinstance(desk.sink, Recorder)
    use, metrics = desk.sink.records
    assert isinstance(use, SampleUse)
    assert (use.staleness, use.step, use.stage) == (1, 1, 3)
    assert isinstance(metrics, Metrics)
    assert metrics.values == {"train/loss/mean": 0.5}


async def test_a_stop_is_the_answer_to_every_further_take(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    await desk.offer(batch(1))
    desk.stop()
    assert await desk.take(0) == {"kind": "stop"}
