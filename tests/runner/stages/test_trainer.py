"""Owning a trainer: real children that behave like trainers, and how their stage ends."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.cluster.cluster import Hosted
from forge.cluster.roles import Ranks
from forge.config.schema import ClusterTable, EvalTable, ModelTable, ServeTable, SftStage
from forge.errors import ChildDied, MachineError, Stalled, Stopped
from forge.process.child import Child, ChildSpec, open_child
from forge.records import Event, Metrics
from forge.runner.live.progress import Progress
from forge.runner.live.stopping import StopRequest
from forge.runner.plan.placement import Placement
from forge.runner.stages import trainer
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from forge.train.checkpoints import ResumePoint
from forge.train.handle import TrainerJob
from tests.gpus import make_gpu
from tests.runner.stages.desks import Recorder, can_record, make_desk

SAVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
time.sleep(60)
"""
FAILS_TO_SAVE = SAVES.replace("sys.exit(0)", "sys.exit('No space left on device')")
STARTS = "import time; print('ready', flush=True); time.sleep(60)"
IGNORES = """
import faulthandler, signal, time
faulthandler.register(signal.SIGUSR1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


class Stage:
    """An sft stage of five steps whose trainers are the given programs, one after the other."""

    def __init__(self, folder: Path, programs: list[str], **keys: Any) -> None:
        self.folder, self.programs = folder, programs
        self.table = SftStage(kind="sft", steps=5, learning_rate=1e-3, **keys)
        self.started: list[Child] = []
        self.stop = StopRequest(resume="resume.")
        self.writer, self.said = Recorder(), []
        self.on_restart: Callable[[], None] = lambda: None
        self.on_start: Callable[[], None] = lambda: None
        self.asked: list[TrainerJob] = []
        self.points = [ResumePoint(path=folder / "checkpoint-3", step=3)]
        self.progress = Progress(run="x-1", num_stages=2)
        self.run: Any = SimpleNamespace(
            experiment=SimpleNamespace(
                model=ModelTable(path="m"),
                rollout=None,
                seed=0,
                serve=ServeTable(),
                eval=EvalTable(),
                cluster=ClusterTable(),
            ),
            cluster=None,
            placement=Placement(),
            paths=RunPaths(folder),
            control_socket=None,
            log_dir=None,
            observer=None,
            stop=self.stop,
            writer=self.writer,
            progress=self.progress,
            console=SimpleNamespace(say=self.said.append),
            busy=dict,
        )
        can_record(self.run)
        self.desk = make_desk(
            folder, stage=1, last_step=5, run=self.run,
            checkpoints=SimpleNamespace(choose=self.choose),
        )  # fmt: skip

    async def choose(self) -> ResumePoint:
        return self.points[0]

    async def own(self) -> None:
        await trainer.own_trainer(
            self.run, self.table, self.desk, point=ResumePoint(), start=Weights(full=Path("w"))
        )

    @asynccontextmanager
    async def open_trainer(self, job: TrainerJob, **kwargs: Any) -> AsyncIterator[Child]:
        spec = ChildSpec(
            name="trainer",
            argv=(sys.executable, "-c", self.programs[len(self.started)]),
            log_path=self.folder / "trainer.log",
            env={},
            socket_path=None,
            config={},
            stop_grace_s=0.2,
        )
        async with open_child(spec) as child:
            self.started.append(child)
            self.asked.append(job)
            self.on_start()
            if len(self.started) > 1:
                self.on_restart()
            yield child

    async def ready(self) -> None:
        with anyio.fail_after(10):
            while not self._is_ready():  # noqa: ASYNC110 - a log file has no event
                await anyio.sleep(0.01)

    def _is_ready(self) -> bool:
        return bool(self.started) and "ready" in self.started[-1].last_log_lines()

    async def own_and_stop(self) -> None:

        async def ask() -> None:
            await self.ready()
            self.stop.set("stopped by SIGINT")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await self.own()


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(trainer, "WATCH_EVERY_S", 0.01)
    monkeypatch.setattr(trainer, "STACKS_S", 0.2)
    programs, keys = request.param
    made = Stage(tmp_path, programs, **keys)
    monkeypatch.setattr(trainer, "open_trainer", made.open_trainer)
    return made


def trainers(*programs: str, **keys: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("stage", [(list(programs), keys)], indirect=True, ids=[""])


@trainers(SAVES)
async def test_a_stopped_trainer_that_saved_ends_the_stage_as_saved(stage: Stage) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await stage.own_and_stop()
    assert caught.group_contains(Stopped, match="SIGINT; everything is saved")


@trainers(STARTS)
async def test_a_trainer_stopped_while_it_starts_has_lost_nothing(stage: Stage) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await stage.own_and_stop()
    assert caught.group_contains(Stopped)


@trainers(FAILS_TO_SAVE, SAVES)
async def test_a_trainer_that_could_not_save_is_reported_as_dead(stage: Stage) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await stage.own_and_stop()
    assert caught.group_contains(ChildDied, match="(?s)exit 1.*No space left on device")
    assert not caught.group_contains(Stopped)
    assert len(stage.started) == 1


@trainers(IGNORES)
async def test_a_trainer_that_ignores_a_stop_is_killed_and_reported_as_stalled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "STOP_GRACE_S", 0.05)
    with pytest.raises(ExceptionGroup) as caught:
        await stage.own_and_stop()
    words = r"(?s)asked: to finish its step and save.*most recent call first"
    assert caught.group_contains(Stalled, match=words)
    assert not caught.group_contains(Stopped)


@trainers(IGNORES, IGNORES, restarts=1, step_timeout_s=0.5)
async def test_a_silent_trainer_is_restarted_like_a_dead_one(stage: Stage) -> None:
    with pytest.raises(Stalled, match="asked: step 1"):
        await stage.own()
    assert len(stage.started) == 2
    (event,) = stage.writer.records
    assert isinstance(event, Event)
    assert event.kind == "child_restart"
    assert event.message.startswith("trainer: silent in stage sft-1, step 0 of 5; restarted")
    assert stage.said == [event.message]


@trainers("raise SystemExit(3)", "print('done')", restarts=1)
async def test_a_trainer_is_not_restarted_during_an_evaluation(stage: Stage) -> None:
    """It would publish its checkpoint, an older step, to the engines that play the evaluation."""
    publishing = stage.desk.publishing()  # of the step that is evaluated; may end after death

    def publish() -> None:
        if len(stage.started) == 1:
            publishing.__enter__()

    async def told() -> None:
        while not stage.said:  # noqa: ASYNC110 - a list has no event
            await anyio.sleep(0.01)
        await anyio.wait_all_tasks_blocked()

    stage.on_start = publish
    stage.on_restart = lambda: stage.desk.published.advance(5)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.own)
            await told()
            stage.desk.hold()
            publishing.__exit__(None, None, None)
            await anyio.wait_all_tasks_blocked()
            assert len(stage.started) == 1
            stage.desk.release()
    assert len(stage.started) == 2


@trainers("raise SystemExit(3)", "print('done')", restarts=1)
async def test_a_stage_ends_once_its_last_step_is_published(stage: Stage) -> None:
    stage.on_restart = lambda: stage.desk.published.advance(5)
    await stage.own()
    assert stage.writer.records[0].message.startswith("trainer: exit 3 in stage sft-1")


async def test_publishing_a_checkpoint_again_keeps_the_metrics_of_its_step(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [])
    stage.run.busy = lambda: {"serve": 0.0}
    stage.run.weights = SimpleNamespace(publish=published_row)
    stage.desk.trainer_starts()
    await stage.desk.publish(tmp_path, 2, None)
    assert stage.progress.done == 2, "the live line continues where the stage is"
    await stage.desk.report(3, {})
    await stage.desk.publish(tmp_path, 3, None)
    assert stage.progress.done == 3
    again, _, after = (row.values for row in stage.writer.records)
    assert set(again) == {"weights/publish/seconds", "weights/probe_gap/mean"}
    assert {"step/wall/seconds", "idle/serve/seconds"} < set(after)


async def published_row(*args: object, **kwargs: object) -> SimpleNamespace:
    return SimpleNamespace(version=1, publish_s=0.1, probe_gap=0.0)


FULL = {"kind": "oom", "micro_batch_tokens": 4096, "peak_bytes": 78_100_000_000,
        "free_bytes": 300_000_000, "rank": 1}  # fmt: skip


def fill_memory(stage: Stage, numbers: dict[str, Any] = FULL) -> None:

    def say() -> None:
        stage.desk.failure = numbers

    stage.on_start = say


@trainers("raise SystemExit(1)", "raise SystemExit(1)", restarts=0)
async def test_after_gpu_memory_ran_out_half_the_size_is_tried_and_then_reported_with_figures(
    stage: Stage,
) -> None:
    fill_memory(stage)
    with pytest.raises(MachineError) as caught:
        await stage.own()
    assert [asked.micro_batch_scale for asked in stage.asked] == [1.0, 0.5]
    words = str(caught.value)
    assert words.startswith("trainer: GPU memory ran out in stage sft-1, step 0 of 5, again after")
    for number in ("4096 tokens", "78.1 GB", "0.3 GB", "rank 1", "micro_batch_tokens"):
        assert number in words
    assert f"{stage.folder}/experiment.toml, and resume.; in a new run also [model.lora]" in words
    (event,) = stage.writer.records
    assert "restarted with half" in event.message


@trainers("raise SystemExit(1)", "raise SystemExit(1)", "raise SystemExit(1)", restarts=1)
async def test_half_size_is_kept_over_a_restart_and_does_not_count_as_one(stage: Stage) -> None:
    def fill_once() -> None:
        stage.desk.failure = FULL if len(stage.started) == 1 else None

    stage.on_start = fill_once
    with pytest.raises(ChildDied):
        await stage.own()
    assert [asked.micro_batch_scale for asked in stage.asked] == [1.0, 0.5, 0.5]


@trainers("raise SystemExit(1)", restarts=0)
async def test_a_trainer_gets_the_gpus_of_its_role_and_publishes_in_the_engines_type(
    stage: Stage,
) -> None:
    cards = (make_gpu(0), make_gpu(1))
    stage.run.placement = Placement(train=cards, judge=cards[:1], parallel="fsdp2")
    stage.run.experiment.serve = ServeTable(precision="fast")
    with pytest.raises(ChildDied):
        await stage.own()
    (asked,) = stage.asked
    assert asked.gpus == tuple(card.uuid for card in cards)
    assert asked.shared_gpus == {cards[0].uuid}
    assert asked.publish_dtype == "bfloat16"
    assert asked.stage.parallel == "fsdp2"


@trainers()
async def test_reports_of_an_sft_step_are_stored_and_shown(stage: Stage) -> None:
    stage.progress.enter("sft-1", stage=1, total=5, unit="steps", busy={})
    values = {"train/loss/mean": 0.5, "train/tokens/per_s": 3120.0, "train/grad_norm/value": 1.0}
    await stage.desk.report(3, values)
    (row,) = stage.writer.records
    assert isinstance(row, Metrics)
    assert (row.stage, row.step, row.values) == (1, 3, values)
    assert stage.progress.numbers == {"loss": 0.5, "trained tok/s": 3120.0}
    assert (stage.progress.done, stage.progress.eta_s()) == (3, None)


def lose_ranks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, reason: str, *, steps: int = 0
) -> None:
    """Ranks on a node that end for this reason once the trainer has started and trained steps."""

    @asynccontextmanager
    async def open_ranks(
        _cluster: Any, _table: Any, job: TrainerJob, **_how: Any
    ) -> AsyncIterator[Ranks]:
        cluster: Any = None
        hosted = Hosted(
            cluster=cluster, name="trainer-1", key="k", url="", host="node", log_offset=0,
            log_path=stage.folder / "trainer-1.log",
        )  # fmt: skip
        hosted.log_path.write_text("its last words")

        async def lose() -> None:
            await stage.ready()
            stage.desk.trained_step += steps
            hosted._end(reason)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose)
            yield Ranks(job=job, hosted=[hosted])
            tasks.cancel_scope.cancel()

    monkeypatch.setattr(trainer, "open_ranks", open_ranks)


@trainers(STARTS, restarts=0)
async def test_ranks_of_a_lost_node_end_the_trainer_with_their_reason(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_ranks(stage, monkeypatch, "its host is gone: the node was terminated")
    words = "(?s)trainer-1 on node died while stage sft-1.*its host is gone.*its last words"
    with pytest.raises(ChildDied, match=words):
        await stage.own()


@trainers(STARTS, STARTS, STARTS, STARTS, restarts=1)
async def test_a_lost_node_counts_as_a_restart_only_without_a_step(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_ranks(stage, monkeypatch, "its host is gone", steps=1)
    stage.on_restart = lambda: lose_ranks(stage, monkeypatch, "its host is gone")
    with pytest.raises(ChildDied, match="trainer-1 on node died"):
        await stage.own()
    assert len(stage.started) == 4, "two after a step each, and one restart without a step"
    assert stage.said[0].startswith("trainer-1: its host is gone in stage sft-1, step 1 of 5; rest")


@trainers("print('ready', flush=True); raise SystemExit(7)", restarts=0)
async def test_ranks_that_exit_with_the_trainer_are_not_blamed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_ranks(stage, monkeypatch, "exit 1")
    with pytest.raises(ChildDied, match=r"trainer died .* exit 7"):
        await stage.own()


@trainers(FAILS_TO_SAVE, SAVES)
async def test_gpu_memory_that_ran_out_while_stopping_is_reported_with_figures(
    stage: Stage,
) -> None:
    fill_memory(stage)
    with pytest.raises(ExceptionGroup) as caught:
        await stage.own_and_stop()
    assert caught.group_contains(MachineError, match=r"78\.1 GB.*, while stopping\. resume\.")
    assert len(stage.started) == 1
