# pyright: strict
"""Working time of a server: the `busy_s` of every /health, from which idle shares are computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class BusyClock:
    """Counts the seconds with at least one request in progress. For one thread or event loop."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._total_s = 0.0
        self._num_running = 0
        self._since = 0.0

    @contextmanager
    def running(self) -> Generator[None]:
        """Count the time inside as busy. Use it around each request."""
        if self._num_running == 0:
            self._since = self._now()
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1
            if self._num_running == 0:
                self._total_s += self._now() - self._since

    @property
    def busy_s(self) -> float:
        """Seconds with a request in progress; never falls."""
        return self._total_s + (self._now() - self._since if self._num_running else 0.0)
