"""Stopping a run: repeated Ctrl-C, `forge stop` and `[limits]`.

    first   SIGINT, SIGTERM, forge stop,   start nothing new, finish the step, checkpoint, exit 130
            a limit
    second  SIGINT, SIGTERM                stop now; the store and the last checkpoint remain
    third   SIGINT, SIGTERM                SIGKILL to every child, a line, exit 130 at once

SIGHUP is ignored: a run outlives the terminal that it was started from.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup, TaskStatus

from forge.config.schema import LimitsTable
from forge.errors import Stopped


class StopRequest:
    """A request to stop the run, with its reason. Stages check `is_set` or wait. `resume` is a
    sentence that says how to continue the run."""

    def __init__(self, *, resume: str) -> None:
        self.reason = ""
        self.resume = resume
        self._event = anyio.Event()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self, reason: str) -> None:
        if not self.is_set:
            self.reason = reason
            self._event.set()

    def stopped(self) -> Stopped:
        """The exception of a stage that has saved and ends."""
        return Stopped(f"{self.reason}; everything is saved. {self.resume}")

    def stopped_at_once(self) -> Stopped:
        """The exception of a run whose work was cancelled."""
        return Stopped(
            "stopped at once; what was recorded is safe, training since the last checkpoint is "
            f"done again. {self.resume}"
        )

    def killed(self) -> str:
        """The last line of a run whose children were killed."""
        return (
            "killed; what was recorded is safe, training since the last checkpoint is done again. "
            f"{self.resume}"
        )

    async def wait(self) -> None:
        await self._event.wait()

    @asynccontextmanager
    async def dropping(self) -> AsyncGenerator[TaskGroup]:
        """Around work that a stop may cancel; execution continues after the block. A result that is
        still absent there was dropped. Yields a task group that is cancelled with the block."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel, tasks.cancel_scope)
            yield tasks
            tasks.cancel_scope.cancel()

    async def _cancel(self, scope: anyio.CancelScope) -> None:
        await self.wait()
        scope.cancel()


def limit_reached(limits: LimitsTable, *, hours: float, tokens: int) -> str:
    """Description of the limit that an attempt has reached; empty if none."""
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
    """Handle repeated stop signals until cancelled. Must run outside the work's cancel scope: the
    second signal cancels the work, and a third must still be handled meanwhile. `kill_all` has the
    last word.

    Each signal takes effect before its message is shown.
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
