"""Oracles, and which of them draw for several problems: on a GPU, contexts are what is scarce.

Called by `trial.references` and `trial.gpu.references`, and by `timing.baseline` for the processes
that time references. Promises: no problem meets changes that another one's code made to torch. So
an oracle is kept only while all that it ran could leave nothing behind (`contained.py`); any other
has one of its own, which ends with its draw, as does one whose draw failed. At most `num_kept` are
kept; a draw that finds all of them at work waits for one.
"""

from __future__ import annotations

import select
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.children.spawner import SandboxedChild, ZygoteGone
from forge.evalpool.judge.sandbox.enter import Isolation
from forge.evalpool.judge.trial.contained import is_contained

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from forge.evalpool.judge.children.spawner import Spawner
    from forge.records.problem import ReferenceModule

MAX_DRAWS = 256
"""Limit for one oracle: leaks of a library stay small."""


class OutOfMemory(Exception):
    """An oracle needed more memory than it may have."""


@dataclass(slots=True)
class _Oracle:
    child: SandboxedChild
    num_draws: int = 0


class Oracles:
    """One judge's. Safe to call from several threads."""

    def __init__(self, spawner: Spawner, *, num_kept: int, role: str = "oracle") -> None:
        self._spawner = spawner
        self._role = role
        self._num_kept = num_kept
        self._changed = threading.Condition()
        self._idle: list[_Oracle] = []
        """The one that worked last is the last."""
        self._num_lent = 0
        """Number of kept oracles that are lent."""
        self._spent = set[SandboxedChild]()

    @contextmanager
    def lent(self, problem: ReferenceModule, *, is_clean: bool = True) -> Iterator[SandboxedChild]:
        """One for a draw of a problem, which may be asked for another once the block has ended
        well. Raises ZygoteGone or WeakSandbox, but not behind a draw that is done: it may hold
        memory of the card that somebody must free.

        Args:
            is_clean: what is asked of it leaves nothing behind, whatever the problem is.
        """
        # Without a sandbox a candidate could enter the process that draws for the next one.
        is_shared = (
            is_clean and is_contained(problem) and self._spawner.isolation is not Isolation.NONE
        )
        one = self._take(problem) if is_shared else self._fresh(problem)
        is_kept = False
        try:
            yield one.child
            one.num_draws += 1
            is_kept = is_shared and one.num_draws < MAX_DRAWS and one.child not in self._spent
        except BaseException as error:
            self._end_failed(one.child, error)
            raise
        finally:
            self._spent.discard(one.child)
            if is_shared:
                self._give_back(one if is_kept else None)
        if not is_kept:
            self._end([one])

    def spend(self, child: SandboxedChild) -> None:
        """A lent one serves no other problem: what it did left something behind."""
        self._spent.add(child)

    def clear(self) -> None:
        """Ends those that wait: no draw is asked for, or something else needs the card's memory."""
        with self._changed:
            idle, self._idle = self._idle, []
        self._end(idle)

    def _take(self, problem: ReferenceModule) -> _Oracle:
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._num_lent < self._num_kept)
            self._num_lent += 1
            fit = [kept for kept in self._idle if self._is_fit(kept)]
            unfit = [kept for kept in self._idle if kept not in fit]
            taken = fit.pop() if fit else None
            self._idle = fit
        self._end(unfit)
        if taken is not None:
            return taken
        try:
            return self._fresh(problem)
        except BaseException:
            self._give_back(None)
            raise

    def _fresh(self, problem: ReferenceModule) -> _Oracle:
        child = self._spawner.spawn(role=self._role, source=problem.source)
        return _Oracle(child)

    def _give_back(self, kept: _Oracle | None) -> None:
        """None for one that ends."""
        with self._changed:
            self._num_lent -= 1
            if kept is not None:
                self._idle.append(kept)
            self._changed.notify()

    def _is_fit(self, kept: _Oracle) -> bool:
        """Not one that has ended, with its zygote or alone: an oracle says nothing unasked."""
        return self._spawner.is_current(kept.child) and not _has_news(kept.child.sock)

    def _end_failed(self, child: SandboxedChild, error: BaseException) -> None:
        """Raises ZygoteGone where it ended with its zygote: no reference is to blame for that; and
        OutOfMemory where the memory cap killed it."""
        if isinstance(error, frames.PeerGone):
            if self._spawner.ended(child).is_out_of_memory:
                raise OutOfMemory from error
        else:
            self._spawner.end(child)
        if not self._spawner.is_current(child):
            raise ZygoteGone("an oracle ended with its zygote") from error

    def _end(self, unfit: list[_Oracle]) -> None:
        for kept in unfit:
            with suppress(ZygoteGone):
                self._spawner.end(kept.child)


def _has_news(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
