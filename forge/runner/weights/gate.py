"""The turn gate, which orders turns and publishes; and how a publish treats running turns.

    many turns      async with gate.turn()      each waits while a publish waits or runs
    evaluations     async with gate.pinned()    the same, as one long turn
    one publish     async with gate.publish()   waits until those have ended; preferred
    sleeping        gate.hold(), release()      no turn begins while engines sleep

A publish takes effect at a turn boundary, so no completion mixes two policies. Where the replicas
keep that boundary themselves, turns pass the gate: only pinned evaluations and publishes exclude
each other.

No wait has a fixed length, since an evaluation is one long turn: only silence has a deadline, and a
long holder of the gate calls `report_progress` at each answer.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import anyio

from forge.errors import Stalled
from forge.serve.port import OLD_ADAPTERS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection


class Turnover(StrEnum):
    """Treatment of running turns by a publish. All three are the same for the synchronous loop,
    where nothing runs during a publish."""

    STOP = "stop"
    """Every turn ends, then all replicas load: nothing is generated meanwhile."""
    ROLLING = "rolling"
    """One replica after the other loads, each once its own turns have ended."""
    LIVE = "live"
    """Immediately: a turn keeps the adapter that it began with, or continues with new weights."""


def choose_turnover(
    *,
    max_staleness: int,
    in_flight: Literal["turn", "keep"],
    is_adapter: bool,
    num_replicas: int,
    features: Collection[str],
) -> Turnover:
    """The turnover that delays generation least and still gives each turn one set of weights,
    unless `in_flight = "keep"` permits two. `features` are the engine's."""
    if max_staleness == 0:
        return Turnover.STOP
    if in_flight == "keep" or (is_adapter and OLD_ADAPTERS in features):
        return Turnover.LIVE
    return Turnover.ROLLING if num_replicas > 1 else Turnover.STOP


class TurnGate:
    """A reader-writer lock for one event loop; publishers are preferred. A wait raises Stalled if
    no turn ends or reports progress for `timeout_s`."""

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.turnover = Turnover.STOP
        """Treatment of running turns by a publish. Changed only between stages."""
        self._running = 0
        self._publishing = 0
        self._may_begin = anyio.Event()
        self._may_begin.set()
        self._exclusive = anyio.Lock()
        self._condition = anyio.Condition()

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Held from the first token of a training turn to its last."""
        await self._may_begin.wait()
        if self.turnover is not Turnover.STOP:
            yield
            return
        async with self.pinned():
            yield

    def hold(self) -> None:
        """Training turns wait to begin, without a deadline, until `release`."""
        if self._may_begin.is_set():
            self._may_begin = anyio.Event()

    def release(self) -> None:
        """End of `hold`."""
        self._may_begin.set()

    @asynccontextmanager
    async def pinned(self) -> AsyncGenerator[None]:
        """Shared: the weights do not change while inside."""
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
    async def publish(self) -> AsyncGenerator[None]:
        """Exclusive: nothing is pinned, and no turn runs if turns are stopped."""
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

    async def report_progress(self) -> None:
        """A running turn has made progress: the deadlines of waits begin again."""
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
