"""Engines that start while the SFT stage before their first use trains.

    sft trains ── share of its steps ──▶ engines start beside it ──▶ sft ends ──▶ its weights loaded
                                            └── failed: they start again once they are needed

Called by `work.py` for engines on GPUs, which take minutes to start. Promise: a failure of the
early start costs nothing but the time saved.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from forge.config.schema import SftStage
from forge.errors import ForgeError
from forge.exits import iter_leaves

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from forge.config.schema import Stage
    from forge.runner.live.progress import Progress
    from forge.serve.weights import Publishing, Weights

    OpenEngines = Callable[[], AbstractAsyncContextManager[Publishing[Any]]]

TRAINED_SHARE = 0.25
"""Share of the SFT steps before engines start on the trainer's card: its memory is then as large as
it becomes, and engines measure how much is left to them."""
PAUSE_S = 0.5


class EarlyStart:
    """Engines that are starting, or have started; made by `start_early`."""

    def __init__(self, open_engines: OpenEngines, *, say: Callable[[str], None]) -> None:
        self._open, self._say = open_engines, say
        self._wanted, self._settled = anyio.Event(), anyio.Event()
        self._engines: Publishing[Any] | None = None

    async def take(self, weights: Weights) -> Publishing[Any] | None:
        """The engines, with these weights; None if they did not start. Waits for a running start,
        and starts them if nothing has yet."""
        self._wanted.set()
        await self._settled.wait()
        if self._engines is not None and self._engines.weights != weights:
            await self._engines.publish_weights(weights)
        return self._engines

    async def hold(self) -> None:
        """Start the engines once they are wanted and keep them until cancelled."""
        await self._wanted.wait()
        try:
            async with self._open() as engines:
                self._engines = engines
                self._settled.set()
                await anyio.sleep_forever()
        except (ForgeError, BaseExceptionGroup) as error:
            leaves = list(iter_leaves(error))
            if self._engines or not all(isinstance(leaf, ForgeError) for leaf in leaves):
                raise
            cause = str(leaves[0]).partition("\n")[0]  # the log has the rest
            self._say(f"engines start once they are needed; beside the trainer: {cause}")
        finally:
            self._settled.set()

    async def want_after(self, progress: Progress, *, stage: int, share: float) -> None:
        """Start the engines once this share of the stage's steps, at least one, is trained."""
        while not _is_trained(progress, stage, share):  # noqa: ASYNC110 - numbers, not an event
            await anyio.sleep(PAUSE_S)
        self._wanted.set()


@asynccontextmanager
async def start_early(
    open_engines: OpenEngines,
    progress: Progress,
    *,
    stage: int,
    share: float,
    say: Callable[[str], None],
) -> AsyncGenerator[EarlyStart]:
    """Open engines in the background when a share of an SFT stage is trained, and close them at
    the end of the context. `say` reports a start that failed."""
    early = EarlyStart(open_engines, say=say)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(early.hold)
        tasks.start_soon(partial(early.want_after, progress, stage=stage, share=share))
        yield early
        tasks.cancel_scope.cancel()


def _is_trained(progress: Progress, stage: int, share: float) -> bool:
    return progress.stage == stage and progress.done >= max(1, share * progress.total)


def is_before_use(stages: Sequence[tuple[int, Stage]], index: int) -> bool:
    """True if the stage after an SFT stage, among those to come, needs engines."""
    after = next((stage for number, stage in stages if number > index), None)
    return after is not None and not isinstance(after, SftStage)
