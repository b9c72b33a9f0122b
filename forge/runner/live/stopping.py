"""Stopping a run: repeated Ctrl-C, `forge stop` and `[limits]`.

    first   SIGINT, SIGTERM, forge stop,   start nothing new, finish the step, checkpoint, exit 130
            a limit
    second  SIGINT, SIGTERM                stop now; the store and the last checkpoint remain
    third   SIGINT, SIGTERM                SIGKILL to every child, a line, exit 130 at once

SIGHUP is ignored: a run outlives the terminal that it was started from.

`StoreObserver` knows which children live, for the third Ctrl-C and for `forge status`, and records
their starts and ends in the store.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

from forge.config.schema import LimitsTable
from forge.errors import Stopped
from forge.records import ProcessEnd, ProcessStart
from forge.rollout.ports import Sink


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


@dataclass(slots=True, kw_only=True)
class Seen:
    """A child by its name, over all its starts in this attempt. Times are monotonic seconds."""

    pid: int
    devices: str
    """UUIDs of its GPUs, or `cpu`."""
    log_path: Path
    started_at: float
    num_starts: int = 1
    ended_at: float | None = None
    reason: str = ""
    node: str = ""
    """Name and address of its machine; empty for this one, whose pids are known here."""


class StoreObserver:
    """A ProcessObserver. Its methods are called from synchronous code, so rows wait in a queue
    until `drain` stores them."""

    def __init__(self, sink: Sink, attempt: int) -> None:
        self._sink, self._attempt = sink, attempt
        self._alive: set[int] = set()
        self.seen: dict[str, Seen] = {}
        self._rows: deque[ProcessStart | ProcessEnd] = deque()
        self._added = anyio.Event()

    def started(self, name: str, *, pid: int, devices: str, log_path: Path, node: str = "") -> None:
        """A child was started, on this machine or on a node of the cluster."""
        if not node:
            self._alive.add(pid)
        before = self.seen.get(name)
        self.seen[name] = Seen(
            pid=pid, devices=devices, log_path=log_path, started_at=time.monotonic(),
            num_starts=1 + (before.num_starts if before else 0),
            reason=before.reason if before else "", node=node,
        )  # fmt: skip
        self._note(
            ProcessStart(
                attempt=self._attempt, name=name, pid=pid,
                devices=f"{node}: {devices}" if node else devices,
                log_path=str(log_path), started_at=time.time(),
            )
        )  # fmt: skip

    def ended(self, name: str, *, pid: int, reason: str) -> None:
        """A child ended; `reason` describes how."""
        seen = self.seen.get(name)
        if seen is None or not seen.node:
            self._alive.discard(pid)
        if seen is not None and seen.pid == pid:
            seen.ended_at, seen.reason = time.monotonic(), reason
        at = time.time()
        self._note(
            ProcessEnd(attempt=self._attempt, name=name, pid=pid, ended_at=at, reason=reason)
        )

    async def drain(self) -> None:
        """Store rows as they arrive until cancelled, which happens after the last child has ended;
        then the remaining ones."""
        try:
            while True:
                await self._added.wait()
                self._added = anyio.Event()
                await self._put_all()
        finally:
            with anyio.CancelScope(shield=True):
                await self._put_all()

    async def _put_all(self) -> None:
        while self._rows:
            await self._sink.put(self._rows.popleft())

    def _note(self, row: ProcessStart | ProcessEnd) -> None:
        self._rows.append(row)
        self._added.set()

    def kill_all(self) -> None:
        """Send SIGKILL to the process group of every living child."""
        for pid in list(self._alive):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
