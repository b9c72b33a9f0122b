"""Capacity of a judge: its CPU cores, its GPU contexts and the memory that they take.

Called by the pool, the judge and the plan (`runner/plan/gpu_costs.py`), which must agree. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GPU_CAPACITY = 16
"""Candidates at once on a card: start, compilation and correctness of several overlap."""
CONTEXT_BYTES = 450 << 20
"""Of the card, what a runner takes before it has a tensor."""
WAITING_SHARE = 0.04
"""Of the card, for contexts that nobody uses yet: oracles', of which there is one on any card, and
ready runners'."""
MAX_ORACLES = 4
MAX_STARTED = 4


def share(cores: Sequence[int], *, seat: int, num_seats: int, offset: int = 0) -> tuple[int, ...]:
    """Cores of one judge of `num_seats`: no core twice while there are enough, else one in turn.

    Args:
        offset: where to begin, so that two runs on one machine begin at different places.
    """
    count = len(cores)
    each = max(1, count // num_seats)
    first = seat * each + offset
    return tuple(cores[(first + number) % count] for number in range(each))


def num_oracles(*, memory_bytes: int) -> int:
    """Oracles that draw for one problem after another. More would not come sooner: the driver makes
    contexts one at a time, and candidates need theirs."""
    return max(1, min(MAX_ORACLES, _num_waiting(memory_bytes) // 3))


def num_started(*, memory_bytes: int) -> int:
    """References that wait to be timed, each with a context and a candidate's memory, while who
    began them waits for the card. None on one of 24 GB: there each is started when it is timed."""
    return min(MAX_STARTED, _num_waiting(memory_bytes) // 3)


def num_ready(capacity: int, *, memory_bytes: int) -> int:
    """Runners whose context is made ahead: half of those that a judge has at once, for the driver
    makes the others' while these compile; fewer where the card is small."""
    num_left = _num_waiting(memory_bytes) - num_oracles(memory_bytes=memory_bytes)
    return min(capacity // 2, max(0, num_left))


def _num_waiting(memory_bytes: int) -> int:
    return int(WAITING_SHARE * memory_bytes) // CONTEXT_BYTES
