"""How a run is stopped: the Ctrl-C ladder and `forge stop`.

first  (SIGINT, SIGTERM, forge stop)   admit nothing new, finish the step, checkpoint, flush, exit
130 second                                 stop now; what is recorded stays third
SIGKILL to every child, and leave
"""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class StopRequest:
    """Whether and why the run should stop. Stages poll `reason` or wait on it."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._event = anyio.Event()

    @property
    def is_set(self) -> bool:
        return self.reason is not None

    def set(self, reason: str) -> None:
        """Ask for a stop; the first reason is kept."""
        if self.reason is None:
            self.reason = reason
            self._event.set()

    async def wait(self) -> None:
        await self._event.wait()

    async def cancel(self, scope: anyio.CancelScope) -> None:
        """Cancel `scope` when a stop is asked for. Run as a task beside work that may simply be
        dropped."""
        await self.wait()
        scope.cancel()


async def watch_signals(
    stop: StopRequest,
    *,
    say: Callable[[str], None],
    cancel_all: Callable[[], None],
    kill_all: Callable[[], None],
) -> None:
    """The ladder. Runs until cancelled."""
    count = 0
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async for received in signals:
            if received is signal.SIGHUP:
                continue
            count += 1
            if count == 1:
                say("stopping: finishing the step and saving; once more stops now")
                stop.set(f"stopped by {signal.Signals(received).name}")
            elif count == 2:
                say("stopping now; once more kills")
                stop.set("stopped at once")
                cancel_all()
            else:
                kill_all()
                os._exit(130)
