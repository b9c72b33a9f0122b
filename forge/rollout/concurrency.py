"""How many groups are played at once: as many as the engine and the judges can use, found out by
trying. A plain object: facts and `now` in, a limit out.

    KV cache below 60 %, nobody waits in the engine, judges keep up        ──▶ x 1.25
    KV cache above 90 %, and samples wait for room in it with slots free   ──▶ x 0.8
    else, as where samples wait for slots: that costs no memory            ──▶ as it is

More multiplies by less than fewer divides by, so it settles below the point where sequences are
preempted and evaluated again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.records import EngineLoad

KV_LOW = 0.6
KV_HIGH = 0.9
"""Shares of the KV cache in use. Above the higher one a few growing sequences fill it; between the
two there is room for what runs to grow."""
MORE = 1.25
FEWER = 0.8
CHANGE_EVERY_S = 5.0
"""A change shows once the groups that it admitted have reached the engine, and their first answers
the judges."""
QUEUE_PER_JUDGE = 2
"""Candidates that wait for each one in judgement. With more, judges are the bottleneck, and more
groups would only get older."""


class Concurrency:
    """A limit between 1 and `ceiling` groups that begins at `start`."""

    def __init__(self, start: int, ceiling: int) -> None:
        if not 1 <= start <= ceiling:
            raise ValueError(f"1 <= start <= ceiling does not hold for {start}, {ceiling}")
        self.limit = start
        self._ceiling = ceiling
        self._changed_at: float | None = None

    def update(
        self, load: EngineLoad | None, *, judge_queue: int, judge_capacity: int, now: float
    ) -> int:
        """The limit from now on.

        Args:
            load: None where the engine does not say: the limit stays.
            judge_queue: candidates that wait for a judge.
            judge_capacity: candidates that are judged at once.
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
