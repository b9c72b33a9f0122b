"""Records starts and ends of children, and events about them, in the store; knows which children
live, for the third Ctrl-C and for `forge status`."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

from forge.records import ProcessEnd, ProcessStart
from forge.rollout.ports import Sink


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
