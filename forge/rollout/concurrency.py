"""Number of groups played at once: as many as keep the engine and the judges busy, found by trial.
A plain object that maps load and time to a limit.

    KV cache below 60 %, no sample waits in the engine, judges keep up     ──▶ x 1.25
    KV cache above 90 %, samples wait for it while slots are free          ──▶ x 0.8
    else (samples that wait for slots cost no memory)                      ──▶ unchanged

The factor up is smaller than the factor down, so the limit settles below the point where sequences
are preempted and evaluated again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.records import EngineLoad

KV_LOW = 0.6
KV_HIGH = 0.9
"""Shares of the KV cache in use. Above the higher one, a few growing sequences fill it; between the
two, running sequences have room to grow."""
MORE = 1.25
FEWER = 0.8
CHANGE_EVERY_S = 5.0
"""Time until a change has an effect: the new groups reach the engine, and their first answers the
judges."""
QUEUE_PER_JUDGE = 2
"""Waiting candidates per candidate being judged. With more, judges are the bottleneck, and more
groups would only get older."""


class Concurrency:
    """A limit between 1 and `ceiling` groups that starts at `start`."""

    def __init__(self, start: int, ceiling: int) -> None:
        if not 1 <= start <= ceiling:
            raise ValueError(f"1 <= start <= ceiling does not hold for {start}, {ceiling}")
        self.limit = start
        self._ceiling = ceiling
        self._changed_at: float | None = None

    def update(
        self, load: EngineLoad | None, *, judge_queue: int, judge_capacity: int, now: float
    ) -> int:
        """The new limit.

        Args:
            load: None if the engine does not report it; then the limit stays.
            judge_queue: waiting candidates.
            judge_capacity: candidates judged at once.
            now: monotonic seconds.
        """
        if self._changed_at is None:
            self._changed_at = now
        if load is None or now - self._changed_at < CHANGE_EVERY_S:
            return self.limit
        if load.kv_use > KV_HIGH and load.waiting > 0 and load.running < load.slots:
            self._change(math.floor(self.limit * FEWER), now)
        elif (
            load.kv_use < KV_LOW
            and load.waiting == 0
            and judge_queue <= QUEUE_PER_JUDGE * judge_capacity
        ):
            self._change(math.ceil(self.limit * MORE), now)
        return self.limit

    def _change(self, limit: int, now: float) -> None:
        limit = min(max(limit, 1), self._ceiling)
        if limit != self.limit:
            self.limit, self._changed_at = limit, now
