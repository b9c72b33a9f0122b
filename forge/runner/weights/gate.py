"""The turn gate: a publish takes effect at a turn boundary, so no completion mixes two policies.

    many turns    async with gate.turn()      each waits while a publish waits or holds
    evaluations   async with gate.pinned()    the same, as one long turn
    one publish   async with gate.publish()   waits until those have ended; preferred
    naps          gate.hold(), release()      no turn begins while engines sleep

Where the replicas see to the boundary themselves (`turnover.py`), turns pass: only what is pinned
and a publish keep each other waiting.

No wait has a fixed length, since an evaluation is one long turn: it is the silence that has a
deadline, and whoever holds the gate for long says `heard` at each answer.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from forge.errors import Stalled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class TurnGate:
    """A reader-writer lock for one event loop; publishers are preferred.

    Args:
        timeout_s: Without a turn that ends or is heard of, a wait raises Stalled after so long.

    """

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.stops_turns = True
        """Whether a publish and a training turn exclude each other."""
        self._running = 0
        self._publishing = 0
        self._may_begin = anyio.Event()
        self._may_begin.set()
        self._exclusive = anyio.Lock()
        self._condition = anyio.Condition()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Held from the first token of a training turn to its last."""
        await self._may_begin.wait()
        if not self.stops_turns:
            yield
            return
        async with self.pinned():
            yield

    def hold(self) -> None:
        """Training turns wait to begin, without a deadline, until `release`."""
        if self._may_begin.is_set():
            self._may_begin = anyio.Event()

    def release(self) -> None:
        self._may_begin.set()

    @asynccontextmanager
    async def pinned(self) -> AsyncIterator[None]:
        """Shared: the weights are the same ones from beginning to end."""
        async with self._condition:
            await self._wait(lambda: self._publishing == 0, "a publish to end")
            self._running += 1
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                async with self._condition:
                    self._running -= 1
                    self._condition.notify_all()

    @asynccontextmanager
    async def publish(self) -> AsyncIterator[None]:
        """Exclusive: nothing is pinned, and no turn runs that it stops."""
        self._publishing += 1
        try:
            async with self._exclusive:
                async with self._condition:
                    await self._wait(lambda: self._running == 0, "running turns to end")
                yield
        finally:
            self._publishing -= 1
            with anyio.CancelScope(shield=True):
                async with self._condition:
                    self._condition.notify_all()

    async def heard(self) -> None:
        """A turn that goes on has made progress: who waits for its end waits afresh."""
        async with self._condition:
            self._condition.notify_all()

    async def _wait(self, ready: Callable[[], bool], what: str) -> None:
        while not ready():
            with anyio.move_on_after(self.timeout_s) as scope:
                await self._condition.wait()
            if scope.cancelled_caught:
                raise Stalled(
                    f"turn gate: {self.timeout_s:.0f} s of silence, waiting for {what} "
                    f"({self._running} turns running, {self._publishing} publishes waiting)"
                )
