# pyright: strict
"""Capacity of a judge: its CPU cores, its GPU contexts and their memory. Pure.

Called by the pool, the judge and the plan (`runner/plan/gpu_costs.py`), which must agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GPU_CAPACITY = 16
"""Concurrent candidates on a card: start, compilation and correctness of several overlap."""
CONTEXT_BYTES = 450 << 20
"""GPU memory of a runner before it has a tensor."""
WAITING_SHARE = 0.04
"""Share of the card's memory for contexts not yet in use: those of oracles (at least one on any
card) and of ready runners."""
MAX_ORACLES = 4
MAX_STARTED = 4


def seat_cores(
    cores: Sequence[int], *, seat: int, num_seats: int, offset: int = 0
) -> tuple[int, ...]:
    """Cores of the judge at a seat: disjoint while there are enough cores, else one in turn.

    Args:
        offset: first core, so that two runs on one machine begin at different cores.
    """
    count = len(cores)
    each = max(1, count // num_seats)
    first = seat * each + offset
    return tuple(cores[(first + number) % count] for number in range(each))


def num_oracles(*, memory_bytes: int) -> int:
    """Number of oracles, each of which draws inputs for one problem at a time. More would not be
    faster: the driver makes one context at a time, and candidates need theirs."""
    return max(1, min(MAX_ORACLES, _num_waiting(memory_bytes) // 3))


def num_started(*, memory_bytes: int) -> int:
    """Number of references started ahead of their timing, each with a context and a candidate's
    memory. None on a card of 24 GB, where each is started when it is timed."""
    return min(MAX_STARTED, _num_waiting(memory_bytes) // 3)


def num_ready(capacity: int, *, memory_bytes: int) -> int:
    """Number of runners with a context made ahead: half of a judge's runners, since the driver
    makes the other contexts while these compile; fewer on a small card."""
    num_left = _num_waiting(memory_bytes) - num_oracles(memory_bytes=memory_bytes)
    return min(capacity // 2, max(0, num_left))


def _num_waiting(memory_bytes: int) -> int:
    return int(WAITING_SHARE * memory_bytes) // CONTEXT_BYTES
