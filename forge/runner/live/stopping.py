"""How a run is stopped: the Ctrl-C ladder, `forge stop` and `[limits]`.

    first   SIGINT, SIGTERM, forge stop,   admit nothing new, finish the step, checkpoint, exit 130
            a limit
    second  SIGINT, SIGTERM                stop now; what is recorded and the last checkpoint stay
    third   SIGINT, SIGTERM                SIGKILL to every child, and leave

SIGHUP is ignored: a run outlives the terminal it was started from.
"""

from __future__ import annotations

import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from forge.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from anyio.abc import TaskGroup, TaskStatus

    from forge.config.schema import LimitsTable


class StopRequest:
    """Whether and why the run should stop. Stages ask `is_set` or wait.

    Args:
        resume: the sentence that says how to go on.

    """

    def __init__(self, *, resume: str) -> None:
        self.reason = ""
        self.resume = resume
        self._event = anyio.Event()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self, reason: str) -> None:
        """Ask for a stop; the first reason is kept."""
        if not self.is_set:
            self.reason = reason
            self._event.set()

    def stopped(self) -> Stopped:
        """What a stage ends with once it has saved."""
        return Stopped(f"{self.reason}; everything is saved. {self.resume}")

    def stopped_at_once(self) -> Stopped:
        """What a run ends with whose work was taken down."""
        return Stopped(
            "stopped at once; what was recorded is safe, training since the last checkpoint is "
            f"done again. {self.resume}"
        )

    async def wait(self) -> None:
        await self._event.wait()

    @asynccontextmanager
    async def dropping(self) -> AsyncIterator[TaskGroup]:
        """What runs inside may simply be dropped: a stop cancels it, and goes on behind it. A
        result that is still absent there was dropped. Yields the group of tasks that end with
        it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel, tasks.cancel_scope)
            yield tasks
            tasks.cancel_scope.cancel()

    async def _cancel(self, scope: anyio.CancelScope) -> None:
        await self.wait()
        scope.cancel()


def limit_reached(limits: LimitsTable, *, hours: float, tokens: int) -> str:
    """Which limit an attempt has reached, in words; empty where none."""
    if limits.hours is not None and hours >= limits.hours:
        return f"limits.hours = {limits.hours:g} reached"
    if limits.tokens is not None and tokens >= limits.tokens:
        return f"limits.tokens = {limits.tokens} reached"
    return ""


async def watch_signals(
    stop: StopRequest,
    *,
    say: Callable[[str], None],
    cancel_work: Callable[[], None],
    kill_all: Callable[[], None],
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """The ladder. Runs until cancelled, beside the work and not in it: the second rung takes the
    work down, and the third is still there meanwhile.

    Each rung acts before it speaks.
    """
    count = 0
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for received in signals:
            if received is signal.SIGHUP:
                continue
            count += 1
            if count == 1:
                stop.set(f"stopped by {signal.Signals(received).name}")
                say("stopping: finishing the step and saving; once more stops now")
            elif count == 2:
                cancel_work()
                say("stopping now; once more kills")
            else:
                kill_all()
                os._exit(130)
