# pyright: strict
"""Children that serve one candidate or problem after the other, since to fork and end one takes
longer.

A child is kept only while nothing of a candidate can stay in it: its owner decides (`give_back` or
`end`). RELEASE tells a child to forget its candidate, DONE says that it has.
"""

from __future__ import annotations

import select
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.children.spawner import SandboxedChild, Spawner, ZygoteGone
from forge.evalpool.judge.sandbox.enter import Isolation

MAX_SERVED = 256
"""Candidates or problems of one child: what leaks in a library stays small."""
MAX_IDLE = 16
RELEASE_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Kept:
    """A child and its past."""

    child: SandboxedChild
    num_served: int = 0


class KeptChildren:
    """The children of one role of one judge. Safe to call from several threads."""

    def __init__(self, spawner: Spawner, *, role: str, is_released: bool = True) -> None:
        """`is_released`: a child has to forget what it served; others have forgotten it when they
        answer."""
        self.spawner = spawner
        self._role = role
        self._is_released = is_released
        self._lock = threading.Lock()
        self._idle: list[Kept] = []
        """The one that worked last is the last."""

    @property
    def can_keep(self) -> bool:
        """False without a sandbox: a candidate could enter the process that serves the next one."""
        return self.spawner.isolation is not Isolation.NONE

    def take(self, *, source: str = "") -> Kept:
        """A child that serves nobody; `source` as of `Spawner.spawn`. Raises as that."""
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            if kept is None:
                return self.fresh(source=source)
            if self.spawner.is_current(kept.child) and self._is_ready(kept.child):
                return kept
            self.end(kept)

    def fresh(self, *, source: str = "") -> Kept:
        """A child that has served nobody. As `take`."""
        return Kept(self.spawner.spawn(role=self._role, source=source))

    def give_back(self, kept: Kept) -> None:
        """Keeps a child for another one, or ends it. Does not wait for it."""
        kept.num_served += 1
        with suppress(frames.PeerGone, frames.DeadlinePassed):
            if kept.num_served < MAX_SERVED and self.can_keep:
                if self._is_released:
                    frames.send(kept.child.sock, Kind.RELEASE, {}, timeout_s=RELEASE_TIMEOUT_S)
                with self._lock:
                    if len(self._idle) < MAX_IDLE:
                        self._idle.append(kept)
                        return
        self.end(kept)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for kept in idle:
            self.end(kept)

    def end(self, kept: Kept) -> None:
        """Ends a child that serves nobody else."""
        with suppress(ZygoteGone):
            self.spawner.end(kept.child)

    def _is_ready(self, child: SandboxedChild) -> bool:
        """True once a child has given up its last candidate, or if it says nothing and lives."""
        if not self._is_released:
            poll = select.poll()
            poll.register(child.sock, select.POLLIN)
            return not poll.poll(0)
        deadline = time.monotonic() + RELEASE_TIMEOUT_S
        try:
            frames.receive(child.sock, deadline=deadline, expected=(Kind.DONE,))
        except (frames.PeerGone, frames.DeadlinePassed, frames.FrameError):
            return False
        return True
