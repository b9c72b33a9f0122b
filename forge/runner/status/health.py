"""Green, yellow or red: what the supervisor thinks of one of its components, and the figure that
decides. A plain function: facts in, words out.

    red      failed (quarantined), recovering (gone, being started), or silent beyond its limit
    yellow   a queue at its bound, memory over 90 %, or restarted within the last two minutes
    green    else
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.control.records import Health

FULL = 0.9
"""Of a memory: above it the next long sample or large batch may not fit."""
RESTARTED_S = 120.0
"""So long after a restart it is worth knowing of: what it held was lost, caches are cold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What waits for a component, and the most that may."""

    length: int
    bound: int
    what: str = "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """A memory that a component may run out of."""

    share: float
    """0..1"""
    of: str
    """`80 GB`, `the KV cache`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a component that decides on its health."""

    failure: str = ""
    """Why it is not to be used, and will not mend by itself soon."""
    recovering: str = ""
    """How it ended, while it is being started again."""
    silent_s: float | None = None
    """Since it last said anything, while something was asked of it."""
    silent_limit_s: float | None = None
    queue: Queue | None = None
    fills: tuple[Fill, ...] = ()
    restarted_s: float | None = None
    """Since it was up again after it had died."""
    late_s: float | None = None
    """The supervisor's loop alone: by how much it was late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A colour and its figure; no words for green."""

    health: Health
    why: str = ""


LATE_S, STUCK_S = 1.0, 5.0
"""A loop that is late by so much delays every child; by more than the second, `forge status` gives
up on it."""


def judge_health(facts: Facts) -> Finding:
    """The worst that holds."""
    if facts.failure:
        return Finding(health="red", why=facts.failure)
    if facts.recovering:
        return Finding(health="red", why=f"recovering: {facts.recovering}")
    silent, limit = facts.silent_s, facts.silent_limit_s
    if silent is not None and limit is not None and silent > limit:
        return Finding(health="red", why=f"silent {silent:.0f} s of {limit:.0f} s")
    late = facts.late_s or 0.0
    if late > LATE_S:
        return Finding(
            health="red" if late > STUCK_S else "yellow", why=f"loop late by {late:.1f} s"
        )
    return _strained(facts)


def _strained(facts: Facts) -> Finding:
    queue = facts.queue
    if queue is not None and queue.length >= queue.bound:
        return Finding(health="yellow", why=f"{queue.what} {queue.length} of {queue.bound}")
    fullest = max(facts.fills, key=lambda fill: fill.share, default=None)
    if fullest is not None and fullest.share > FULL:
        return Finding(health="yellow", why=f"memory {100 * fullest.share:.0f} % of {fullest.of}")
    if facts.restarted_s is not None and facts.restarted_s < RESTARTED_S:
        return Finding(health="yellow", why=f"restarted {facts.restarted_s:.0f} s ago")
    return Finding(health="green")
