"""Admission: how many groups may be open, so that each can be trained before it is too old.

A group gets a deadline when it begins: the last step that may train it. A batch takes the groups
that ended first, so they overtake a slow one; room for it is kept in the steps up to its deadline.

    weights of step p are served ──▶ deadline = p + 1 + max_staleness
    for every step h from the open one on:
        groups due by h  ≤  (h - open step + 1) · groups_per_step          (*)

(*) holds for admitted groups, and `may_close` keeps it true when a batch is closed. It is Hall's
condition for an earliest-deadline-first schedule: no group is ever thrown away, whatever order they
end in. With max_staleness = 0 all deadlines are the open step: the synchronous loop.

Pacing (`PublishedSteps`) holds the training step whose weights are served: each publish wakes the
producer, which admits more groups, up to `max_staleness` steps ahead of it.

Concurrency is the number of groups played at once: as many as keep the engine and the judges busy,
found by trial from load and time.

    KV cache below 60 %, no sample waits in the engine, judges keep up     ──▶ x 1.25
    KV cache above 90 %, samples wait for it while slots are free          ──▶ x 0.8
    else (samples that wait for slots cost no memory)                      ──▶ unchanged

The factor up is smaller than the factor down, so the limit settles below the point where sequences
are preempted and evaluated again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import anyio

from forge.errors import Stalled
from forge.records import EngineLoad


@dataclass(slots=True, kw_only=True)
class Admission:
    """Open groups by deadline: admitted, and in no batch yet. No clock, no task."""

    step: int
    """The open step, whose batch is being gathered."""
    last_step: int
    groups_per_step: int
    max_staleness: int
    _due: Counter[int] = field(default_factory=Counter[int])

    @property
    def num_open(self) -> int:
        return self._due.total()

    @property
    def nominal_step(self) -> int:
        """The step that would train the next group if groups ended in order."""
        return self.step + self.num_open // self.groups_per_step

    def deadline(self, served_step: int) -> int:
        """The last step that may train samples from the weights of `served_step`."""
        return min(served_step + 1 + self.max_staleness, self.last_step)

    def fits(self, deadline: int) -> bool:
        """True if (*) holds with one more group of this deadline."""
        if deadline < self.step:
            return False
        steps = {deadline, *(step for step in self._due if step > deadline)}
        return all(
            sum(count for due, count in self._due.items() if due <= step)
            < (step - self.step + 1) * self.groups_per_step
            for step in steps
        )

    def admit(self, deadline: int) -> None:
        """Add a group that begins, or that ended and waits."""
        assert self.fits(deadline)
        self._due[deadline] += 1

    def leave(self, deadline: int) -> None:
        """Remove a group: it is in a batch, dropped, or flat and replaced."""
        assert self._due[deadline] > 0
        self._due = self._due - Counter((deadline,))

    def may_close(self, taken: Iterable[int]) -> bool:
        """True if (*) holds for the steps after the open one, with groups of the deadlines `taken`
        in its batch."""
        left = self._due - Counter(taken)
        return all(
            sum(n for due, n in left.items() if due <= step)
            <= (step - self.step) * self.groups_per_step
            for step in {self.step, *left}
        )

    def close(self, taken: Iterable[int]) -> None:
        for deadline in taken:
            self.leave(deadline)
        self.step += 1


class PublishedSteps:
    """The training step whose weights every replica serves. One producer waits on it, one
    publisher advances it."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self._changed = anyio.Event()

    def advance(self, step: int) -> None:
        """Record a publish. A restarted trainer publishes its checkpoint, an older step: then new
        samples are that old, and the step moves back."""
        self.step = step
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self) -> None:
        await self._changed.wait()

    async def wait_for(self, step: int, *, timeout_s: float) -> None:
        """Wait until `step` is published. Raises Stalled after `timeout_s` without a publish."""
        while self.step < step:
            with anyio.move_on_after(timeout_s) as scope:
                await self.changed()
            if scope.cancelled_caught:
                raise Stalled(
                    f"trainer: no weights published for {timeout_s:.0f} s; "
                    f"the next batch waits for step {step}, the last published is {self.step}"
                )


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
        self.limit, self._ceiling = start, ceiling
        self._changed_at: float | None = None

    def update(
        self, load: EngineLoad | None, *, judge_queue: int, judge_capacity: int, now: float
    ) -> int:
        """The new limit; without a load it stays. `judge_queue`: waiting candidates;
        `judge_capacity`: candidates judged at once; `now`: monotonic seconds."""
        if self._changed_at is None:
            self._changed_at = now
        if load is None or now - self._changed_at < CHANGE_EVERY_S:
            return self.limit
        if load.kv_use > KV_HIGH and load.waiting > 0 and load.running < load.slots:
            self._change(math.floor(self.limit * FEWER), now)
        elif (load.kv_use < KV_LOW and load.waiting == 0) and (
            judge_queue <= QUEUE_PER_JUDGE * judge_capacity
        ):
            self._change(math.ceil(self.limit * MORE), now)
        return self.limit

    def _change(self, limit: int, now: float) -> None:
        limit = min(max(limit, 1), self._ceiling)
        if limit != self.limit:
            self.limit, self._changed_at = limit, now
