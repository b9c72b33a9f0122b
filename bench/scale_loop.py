"""An event loop whose clock is simulated: waiting takes no time, and work takes what it is charged.

Used by `scale.py`. `time()` is the loop's clock, by which anyio sleeps and limits; it advances when
nothing is ready, to the next timer, and by `charge`, as a process with one core is not free for
anything else while it works. Nothing may wait for a thread or a socket.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Any


class _Selector(selectors.SelectSelector):
    """Advances the clock instead of waiting."""

    loop: SimulatedLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the simulation waits for something that never happens")
        self.loop.now_s += max(timeout, 0.0)
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Runs like asyncio's loop, in simulated time."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now_s = 0.0
        self.charged_s = 0.0
        """CPU seconds of everything that was charged."""
        self.own_s = 0.0
        """CPU seconds that the code really took: the schedulers, which are not charged by price."""
        self.is_free = False
        """True if nothing takes CPU time, to compare with."""
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s

    def charge(self, seconds: float) -> None:
        """CPU time of something that is not played here."""
        if not self.is_free:
            self.charged_s += seconds
            self.now_s += seconds

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        took = time.thread_time() - began
        self.own_s += took
        if not self.is_free:
            self.now_s += took
