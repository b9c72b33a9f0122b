"""Health of one component: green, yellow or red, and the figure that decides. Pure.

red      failed (quarantined), recovering (ended, being restarted), or silent beyond its limit
yellow   a queue at its bound, memory over 90 %, or restarted within the last two minutes
green    otherwise
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.control.records import Health

FULL = 0.9
"""Share of a memory above which the next long sample or large batch may not fit."""
RESTARTED_S = 120.0
"""A restart is shown for this long: the component's state was lost and its caches are cold."""
LATE_S, STUCK_S = 1.0, 5.0
"""Delays of the supervisor's loop: above the first every child waits, above the second
`forge status` times out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Length and bound of the queue in front of a component."""

    length: int
    bound: int
    what: str = "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Fill level of a memory that a component may exhaust."""

    share: float
    """0..1"""
    of: str
    """Name of the memory: `80 GB`, `the KV cache`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """Facts that decide on a component's health."""

    failure: str = ""
    """Why it cannot be used and will not recover soon; empty while it can."""
    recovering: str = ""
    """Reason of its end, while it is being restarted; else empty."""
    silent_s: float | None = None
    """Seconds since its last sign of progress, while a request is pending."""
    silent_limit_s: float | None = None
    queue: Queue | None = None
    fills: tuple[Fill, ...] = ()
    restarted_s: float | None = None
    """Seconds since it was up again after it had died."""
    late_s: float = 0.0
    """Delay of the event loop; of the supervisor only."""


def judge_health(facts: HealthFacts) -> tuple[Health, str]:
    """The worst colour that applies, and the figure that decides; no figure for green."""
    if facts.failure:
        return "red", facts.failure
    if facts.recovering:
        return "red", f"recovering: {facts.recovering}"
    silent, limit = facts.silent_s, facts.silent_limit_s
    if silent is not None and limit is not None and silent > limit:
        return "red", f"silent {silent:.0f} s of {limit:.0f} s"
    if facts.late_s > LATE_S:
        return "red" if facts.late_s > STUCK_S else "yellow", f"loop late by {facts.late_s:.1f} s"
    strain = _strain(facts)
    return "yellow" if strain else "green", strain


def _strain(facts: HealthFacts) -> str:
    """The figure that makes a working component yellow; empty for none."""
    queue = facts.queue
    if queue is not None and queue.length >= queue.bound:
        return f"{queue.what} {queue.length} of {queue.bound}"
    fullest = max(facts.fills, key=lambda fill: fill.share, default=None)
    if fullest is not None and fullest.share > FULL:
        return f"memory {100 * fullest.share:.0f} % of {fullest.of}"
    if facts.restarted_s is not None and facts.restarted_s < RESTARTED_S:
        return f"restarted {facts.restarted_s:.0f} s ago"
    return ""
