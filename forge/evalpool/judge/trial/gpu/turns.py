# pyright: strict
"""Turns of one process's threads on a GPU, over one hold of its lease (`forge.process.gpu_locks`).

Threads that use the GPU beside each other share a hold; a thread that needs the GPU alone goes
before those that ask later. A hold passes from thread to thread. It is given up when no thread uses
it: after `MAX_TURNS` of threads alone, and when another process waits to be alone, no thread joins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeAlias

from forge.errors import Stalled
from forge.process.gpu_locks import GpuLease

Turn: TypeAlias = "Callable[[], AbstractContextManager[None]]"
"""Takes a turn on the GPU."""

MAX_TURNS = 32
"""Turns alone, one after the other, while threads wait to share the GPU."""

LEASE_TIMEOUT_S = 480.0
"""A writer waits for every correctness run in progress, a reader for a window of timings."""

WAIT_S = 0.1
"""Interval at which a waiting thread looks again if another process still waits."""


class GpuTurns:
    """Turns on one GPU. Calls block."""

    def __init__(self, lease: GpuLease) -> None:
        self._lease = lease
        self._changed = threading.Condition()
        self._hold: ExitStack | None = None
        self._is_alone = False
        """True if the hold is exclusive."""
        self._is_moving = False
        """True while a thread gives up one hold for another."""
        self._num_inside = 0
        self._num_waiting = {True: 0, False: 0}
        """Threads that wait for a turn, by whether it is alone."""
        self._num_turns = 0
        """Turns alone since the last shared one."""

    def shared(self, *, timeout_s: float = LEASE_TIMEOUT_S) -> AbstractContextManager[None]:
        """Uses the GPU beside others. Raises Stalled."""
        return self._turn(is_alone=False, timeout_s=timeout_s)

    def alone(self, *, timeout_s: float = LEASE_TIMEOUT_S) -> AbstractContextManager[None]:
        """Uses the GPU alone, also among this process's threads. Raises Stalled."""
        return self._turn(is_alone=True, timeout_s=timeout_s)

    @contextmanager
    def _turn(self, *, is_alone: bool, timeout_s: float) -> Generator[None]:
        self._enter(is_alone=is_alone, timeout_s=timeout_s)
        try:
            yield
        finally:
            with self._changed:
                self._num_inside -= 1
                self._tidy()

    def _enter(self, *, is_alone: bool, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            if not self._waited(is_alone=is_alone, deadline=deadline):
                self._tidy()
                raise Stalled(f"no turn on the GPU within {timeout_s:.0f} s")
            self._num_turns = self._num_turns + 1 if is_alone else 0
            if self._hold is not None and self._is_alone == is_alone:
                self._num_inside += 1
                return
            self._is_moving = True
            before, self._hold = self._hold, None
        hold = ExitStack()
        try:
            if before is not None:
                before.close()
            take = self._lease.exclusive if is_alone else self._lease.shared
            hold.enter_context(take(timeout_s=max(0.0, deadline - time.monotonic())))
        except BaseException:
            with self._changed:
                self._is_moving = False
                self._changed.notify_all()
            raise
        with self._changed:
            self._hold, self._is_alone = hold, is_alone
            self._num_inside, self._is_moving = 1, False
            self._changed.notify_all()

    def _waited(self, *, is_alone: bool, deadline: float) -> bool:
        """True once the turn is this thread's; False at the deadline."""
        self._num_waiting[is_alone] += 1
        try:
            while not self._is_free(is_alone=is_alone):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(min(left_s, WAIT_S))
            return True
        finally:
            self._num_waiting[is_alone] -= 1

    def _is_free(self, *, is_alone: bool) -> bool:
        if self._is_moving:
            return False
        if is_alone:
            return self._num_inside == 0 and not self._is_enough
        if self._num_waiting[True] and not self._is_enough:
            return False
        return self._num_inside == 0 or not (self._is_alone or self._lease.is_wanted())

    @property
    def _is_enough(self) -> bool:
        """True if threads that wait to share the GPU go before those that need it alone."""
        return self._num_turns >= MAX_TURNS and self._num_waiting[False] > 0

    def _tidy(self) -> None:
        """Gives up a hold that no thread uses or waits for, and wakes those that wait."""
        is_kept = self._is_alone and self._num_waiting[True] > 0 and not self._is_enough
        if self._hold is not None and self._num_inside == 0 and not is_kept:
            self._hold.close()
            self._hold = None
        self._changed.notify_all()
