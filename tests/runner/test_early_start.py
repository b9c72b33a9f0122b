"""Engines that start while an SFT stage trains: used with its weights, or started again later."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from forge.config.schema import EvalStage, SftStage
from forge.errors import ChildDied
from forge.runner import early_start
from forge.runner.early_start import is_before_use, start_early
from forge.runner.live.progress import Progress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio
SFT = SftStage(kind="sft", steps=1, learning_rate=1e-3)
FIRST: Any = "first"
"""Weights are compared only."""
TRAINED: Any = "trained"


class Engines:
    """Engines of which only the weights matter, and whether they run."""

    def __init__(self, *, weights: Any, error: Exception | None = None) -> None:
        self.weights = weights
        self.error = error
        self.num_published = 0
        self.runs = False
        self.begun = anyio.Event()
        self.may_be_up = anyio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        self.begun.set()
        await self.may_be_up.wait()
        if self.error is not None:
            raise BaseExceptionGroup("", [self.error])
        self.runs = True
        try:
            yield self
        finally:
            self.runs = False

    async def publish_weights(self, weights: Any) -> None:
        self.weights, self.num_published = weights, self.num_published + 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_start, "PAUSE_S", 0.001)


def progress(done: int, total: int = 100, stage: int = 2) -> Progress:
    return Progress(run="x-1", num_stages=4, stage=stage, done=done, total=total)


async def test_engines_start_after_a_share_of_the_steps_and_get_the_trained_weights() -> None:
    engines, seen = Engines(weights=FIRST), progress(24)
    engines.may_be_up.set()
    async with start_early(engines.open, seen, stage=2, share=0.25, say=print) as early:
        await anyio.sleep(0.05)
        assert not engines.begun.is_set()
        seen.done = 25
        with anyio.fail_after(5):
            await engines.begun.wait()
            assert await early.take(TRAINED) is engines
        assert (engines.weights, engines.num_published, engines.runs) == (TRAINED, 1, True)
        assert await early.take(TRAINED) is engines
        assert engines.num_published == 1
    assert not engines.runs


@pytest.mark.parametrize("seen", [progress(0), progress(100, stage=1)])
async def test_engines_that_are_needed_start_at_once(seen: Progress) -> None:
    engines = Engines(weights=FIRST)
    engines.may_be_up.set()
    async with start_early(engines.open, seen, stage=2, share=0.0, say=print) as early:
        await anyio.sleep(0.05)
        assert not engines.begun.is_set()
        with anyio.fail_after(5):
            assert await early.take(FIRST) is engines
    assert engines.num_published == 0


async def test_a_start_that_is_not_done_is_waited_for() -> None:
    engines, taken = Engines(weights=FIRST), list[Any]()
    async with (
        start_early(engines.open, progress(1), stage=2, share=0.0, say=print) as early,
        anyio.create_task_group() as tasks,
    ):

        async def take() -> None:
            taken.append(await early.take(FIRST))

        tasks.start_soon(take)
        await anyio.sleep(0.05)
        assert taken == []
        engines.may_be_up.set()
    assert taken == [engines]


async def test_a_failed_start_is_said_and_costs_nothing() -> None:
    engines = Engines(weights=FIRST, error=ChildDied("serve-0 died: no memory"))
    engines.may_be_up.set()
    said: list[str] = []
    async with start_early(engines.open, progress(1), stage=2, share=0.0, say=said.append) as early:
        with anyio.fail_after(5):
            assert await early.take(FIRST) is None
    assert said == [
        "engines start once they are needed; beside the trainer: serve-0 died: no memory"
    ]


async def test_a_bug_in_a_start_is_not_hidden() -> None:
    engines = Engines(weights=FIRST, error=KeyError("x"))
    engines.may_be_up.set()
    with pytest.raises(BaseExceptionGroup) as raised:
        async with start_early(engines.open, progress(1), stage=2, share=0.0, say=print):
            await anyio.sleep_forever()
    assert raised.group_contains(KeyError)


def test_engines_are_needed_soon_only_if_the_next_stage_serves() -> None:
    served = EvalStage(kind="eval")
    stages = [(0, SFT), (1, SFT), (3, served), (4, SFT)]
    assert [is_before_use(stages, index) for index in (0, 1, 4)] == [False, True, False]
