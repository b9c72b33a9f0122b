"""Timing one runner: what it is asked call by call, and what of its claims stands.

Called by `gpu_trial.py` while it is alone on the card. Promises: every timed call has contents that
its process never saw, at the same address; which of them are compared is secret, as is their
number; and a timed call is held to what a checked one is: its outputs' form, a kernel of its own,
little torch (counted in calls of which the time is thrown away).
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge import clock
from forge.evalpool.judge.clock import Calls, Clocked
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.trial.trial import Decided, count
from forge.records.verdict import Status

if TYPE_CHECKING:
    from forge.evalpool.judge.gpu_run import GpuRun

NUM_WARM_UPS = 3
NUM_TRIALS = 3
"""Calls that say how many there may be."""
NUM_DRY = 25
MIN_CALLS, MAX_CALLS = 10, 50
TIMED_S = 0.4
"""Time for the timed calls of one process; long kernels get fewer, not under MIN_CALLS."""
COUNT_JITTER = 0.2
"""The number of calls is secret: drawn within this share around what TIMED_S allows."""
NUM_SHOWN = 2
"""Times that each unseen set with known outputs is given, at secret places."""
NUM_COUNTED = 2
"""Calls in which torch's work is counted."""
MIXED = -1
"""In a plan: blocks of two sets, by fresh coins. Any other number is a set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One timed call, by both clocks."""

    event_us: float
    wall_us: float
    body: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Timer:
    """Of one runner that has been found correct, or of the reference."""

    run: GpuRun
    limit_s: float
    """For everything together."""
    deadline: float
    draw: secrets.SystemRandom = field(default_factory=secrets.SystemRandom)

    @classmethod
    def start(cls, run: GpuRun) -> Timer:
        """Its time runs from now."""
        limit_s = run.table.timing_timeout_s
        return cls(run=run, limit_s=limit_s, deadline=time.monotonic() + limit_s)

    def dry(self) -> tuple[float, ...]:
        """The judge's clock for calls without a forward, of a runner that no candidate entered."""
        for _ in range(NUM_WARM_UPS):
            self._call(0, is_dry=True)
        return tuple(self._call(0, is_dry=True).wall_us for _ in range(NUM_DRY))

    def reference(self) -> tuple[float, ...]:
        """GPU time of each call, of a process that is believed."""
        return tuple(self._call(MIXED).event_us for _ in range(self._warm_up()))

    def candidate(self, *, dry_us: tuple[float, ...], floor_us: float) -> Clocked:
        """Raises clock.Unsupported, and Decided for what a timed call brought to light."""
        plan = self._plan(self._warm_up())
        counted = set(self.draw.sample(range(len(plan)), NUM_COUNTED))
        event_us, wall_us = [], []
        for place, number in enumerate(plan):
            answer = self._call(number, is_counted=place in counted)
            self._require_honest(answer.body, number=number)
            if place in counted:
                self.run.note_work(answer.body)
                continue
            event_us.append(answer.event_us)
            wall_us.append(answer.wall_us)
        self.run.require_little_torch()
        calls = Calls(event_us=tuple(event_us), wall_us=tuple(wall_us))
        return clock.clocked(calls, dry_us=dry_us, floor_us=floor_us)

    def _plan(self, num: int) -> list[int]:
        unseen = self.run.gpu_reference.unseen * NUM_SHOWN
        plan = [MIXED] * max(num, MIN_CALLS) + [MIXED] * NUM_COUNTED + unseen
        self.draw.shuffle(plan)
        return plan

    def _warm_up(self) -> int:
        """Answers how many calls there may be."""
        for _ in range(NUM_WARM_UPS):
            self._call(MIXED)
        median_us = float(np.median([self._call(MIXED).wall_us for _ in range(NUM_TRIALS)]))
        num = TIMED_S / (median_us * 1e-6) * self.draw.uniform(1 - COUNT_JITTER, 1 + COUNT_JITTER)
        most = MAX_CALLS * self.draw.uniform(1 - COUNT_JITTER, 1)
        return int(min(max(num, MIN_CALLS), most))

    def _call(self, number: int, *, is_dry: bool = False, is_counted: bool = False) -> Answer:
        run = self.run
        if number == MIXED:
            run.gpu_memory.load_mixed(*run.gpu_reference.to_mix)
        else:
            run.gpu_memory.load(number)
        run.device.flush()
        slots = run.gpu_reference.request["slots"]
        body = {"timed": True, "dry": is_dry, "counted": is_counted, "slots": slots}
        left_s = max(0.05, self.deadline - time.monotonic())
        started = time.perf_counter_ns()
        answer = run.ask(Kind.CALL, body, phase="time", left_s=left_s, limit_s=self.limit_s)
        wall_us = (time.perf_counter_ns() - started) / 1e3
        event_us = microseconds(answer.body.get("event_us"))
        return Answer(event_us=event_us, wall_us=wall_us, body=answer.body)

    def _require_honest(self, done: dict[str, Any], *, number: int) -> None:
        """Raises Decided where a timed call is not what the checked ones were."""
        if not count(done.get("num_launches")) and not count(done.get("num_replays")):
            detail = "a timed forward launches no kernel of its own"
            raise Decided(self.run.finding(Status.REJECTED, "no_kernel_launch", detail))
        self.run.note_replays(done)
        self.run.require_form(done)
        if number != MIXED:
            self.run.require_right(number, done)


def microseconds(value: Any) -> float:
    """What a runner says of a call; NaN for what is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return float("nan")
    return float(value) if 0 <= value < 1e12 else float("nan")
