"""Evaluations between steps: the trainer waits for its next batch, and no deadline passes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.config.schema import EvalTable, GrpoStage
from forge.errors import ConfigError
from forge.runner.live.stopping import StopRequest
from forge.runner.stages import evaluate as midway
from forge.runner.stages.evaluate import Midway, evaluated_steps
from forge.store.layout import RunPaths
from tests.runner.stages.desks import make_desk
from tests.store.storefactory import small_run, write_run


class Stage:
    """A grpo stage whose evaluations take until `played` is set."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, evaluated: set[int] | None = None
    ) -> None:
        self.stop = StopRequest(resume="resume.")
        self.desk = make_desk(Path(), last_step=9)
        self.desk.published.step = 2
        monkeypatch.setattr(self.desk.shelf, "path", lambda step: Path("3") if step == 3 else None)
        self.numbers: dict[str, float] = {}
        self.labels: list[str] = []
        self.played = anyio.Event()
        run: Any = SimpleNamespace(
            experiment=SimpleNamespace(eval=EvalTable(every=2)),
            problems_of=lambda split: [],
            stop=self.stop,
            progress=SimpleNamespace(numbers=self.numbers),
        )
        monkeypatch.setattr(midway, "evaluate", self.evaluate)
        table = GrpoStage(kind="grpo", steps=9, learning_rate=1e-3)
        done = evaluated or set()
        self.midway = Midway(run, table, self.desk, evaluated=done)

    async def evaluate(self, *args: object, label: str, **kwargs: object) -> SimpleNamespace:
        self.labels.append(label)
        await self.played.wait()
        return SimpleNamespace(
            pass_at_1=0.25,
            detail={
                "num_trained_problems": 0,
                "num_shared_problems": 0,
                "by_source": {"made": {"pass_at_1": 0.5}},
            },
        )


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


async def test_the_trainer_gets_its_batch_once_the_evaluation_has_been_played(stage: Stage) -> None:
    answers: list[dict[str, Any]] = []

    async def take() -> None:
        answers.append(await stage.desk.take(2))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.midway.run)
        stage.midway.after(1)
        stage.midway.after(2)
        tasks.start_soon(take)
        await anyio.sleep(0.02)
        assert (stage.labels, answers) == (["grpo-3@2"], [])
        stage.played.set()
        await stage.midway.finish()
    assert answers[0]["kind"] == "batch"
    assert stage.numbers == {"held_out": 0.25, "held_out made": 0.5}


async def test_a_wait_for_the_next_publish_does_not_time_out_while_the_trainer_is_held(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(midway, "EXCUSE_EVERY_S", 0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.midway.run)
        stage.midway.after(2)
        with anyio.move_on_after(0.2) as scope:
            await stage.desk.published.wait_for(3, timeout_s=0.05)
        assert scope.cancelled_caught
        stage.played.set()
        await stage.midway.finish()


async def test_a_stop_drops_the_evaluation_and_releases_the_trainer(stage: Stage) -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.midway.run)
            stage.midway.after(4)
            await anyio.wait_all_tasks_blocked()
            stage.stop.set("stopped by SIGINT")
            await stage.midway.finish()
        assert (await stage.desk.take(2))["kind"] == "batch"
    assert stage.numbers == {}


async def test_a_checkpoint_that_is_published_again_is_not_evaluated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, evaluated={2})
    stage.played.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.midway.run)
        for step in (2, 4, 4):
            stage.midway.after(step)
            await anyio.wait_all_tasks_blocked()
        await stage.midway.finish()
    assert stage.labels == ["grpo-3@4"]
    assert (await stage.desk.take(2))["kind"] == "batch"


async def test_a_requested_evaluation_follows_the_current_step(stage: Stage) -> None:
    stage.played.set()
    desk = stage.desk
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.midway.run)
        desk.trained_step = 4
        assert desk.requests_after(4) == {"save": False, "evaluate": False}
        assert stage.midway.ask() == "grpo-3: evaluates after the step that runs"
        stage.midway.after(5)  # published beside the step that runs: the trainer is not held
        await anyio.wait_all_tasks_blocked()
        assert stage.labels == []
        assert desk.requests_after(5) == {"save": False, "evaluate": True}
        stage.midway.after(5)
        await anyio.wait_all_tasks_blocked()
        assert stage.labels == ["grpo-3@5"]
        assert desk.requests_after(6)["evaluate"] is False
        await stage.midway.finish()
    assert (await desk.take(2))["kind"] == "batch"


async def test_an_evaluation_requested_before_a_trainer_died_is_played_after_the_next_ones_step(
    stage: Stage,
) -> None:
    stage.played.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.midway.run)
        stage.midway.ask()
        assert stage.desk.requests_after(7)["evaluate"]
        stage.midway.after(3)  # its successor's checkpoint; 7 was never published
        assert stage.desk.requests_after(5)["evaluate"], "the first step that the successor ends"
        stage.midway.after(5)
        await anyio.wait_all_tasks_blocked()
        await stage.midway.finish()
    assert stage.labels == ["grpo-3@5"]


async def test_an_evaluation_is_refused_during_the_last_step(stage: Stage) -> None:
    stage.desk.trained_step = 8
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.midway.run)
        with pytest.raises(ConfigError, match=r"^grpo-3: its last step runs, 9 of 9; "):
            stage.midway.ask()
        await anyio.wait_all_tasks_blocked()
        await stage.midway.finish()
    stage.desk.is_evaluation_wanted = True
    assert stage.desk.requests_after(9)["evaluate"] is False


async def test_the_evaluated_steps_of_a_stage_are_read_from_the_store(tmp_path: Path) -> None:
    await write_run(tmp_path / "toy-1", small_run())
    run: Any = SimpleNamespace(paths=RunPaths(tmp_path / "toy-1"))
    assert (evaluated_steps(run, 1), evaluated_steps(run, 0)) == ({3}, set())
