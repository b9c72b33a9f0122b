# pyright: strict
"""Capacity of a judge: its CPU cores, its GPU contexts and their memory. Pure.

Called by the pool, the judge and the plan (`runner/plan/memory.py`), which must agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from forge.config.schema import JudgeTable

GPU_CAPACITY = 16
"""Concurrent candidates on a card: capture, compilation and references of several overlap."""
MAX_EXAMINED = 4
"""Problems that are examined at once on a card: imports, contexts and inputs on the CPU of some
overlap with kernels of others."""
CONTEXT_BYTES = 450 << 20
"""GPU memory of a process before it has a tensor."""
ORACLES_SHARE = 0.013
"""Share of the card's memory for contexts of oracles; a card has at least one."""
MAX_ORACLES = 4
EXECUTORS_SHARE = 0.02
"""The same for executors: checked calls of several candidates overlap, timed calls do not."""
MAX_EXECUTORS = 3
NUM_BASELINES = 2
"""Processes of a card that time references: one prepares while another has the card alone."""
DRAW_FACTOR = 3.0
"""Limit for a draw on a CPU, in limits for its reference."""


def seat_cores(
    cores: Sequence[int], *, seat: int, num_seats: int, offset: int = 0
) -> tuple[int, ...]:
    """Cores of the judge at a seat: disjoint while there are enough cores, else one in turn. By
    `offset` two runs on one machine begin at different cores."""
    count = len(cores)
    each = max(1, count // num_seats)
    first = seat * each + offset
    return tuple(cores[(first + number) % count] for number in range(each))


BUSY_FACTOR = 4
"""Times its limit that a phase of a candidate may last on a machine that has no core for it."""


def reference_timeout_s(table: JudgeTable) -> float:
    """Limit for a reference itself, on all input sets of a draw."""
    return table.compile_timeout_s + table.correct_timeout_s


def draw_timeout_s(table: JudgeTable) -> float:
    """Limit for a draw: the judge's own passes over large tensors take several times as long as
    most references, and a busy machine has less than a core for it."""
    return DRAW_FACTOR * reference_timeout_s(table)


def executor_timeout_s(table: JudgeTable) -> float:
    """Maximum wait of a candidate for an executor of its card, if all work for one at a time."""
    timing_s = table.timing_timeout_s if table.timing else 0.0
    return GPU_CAPACITY * (table.correct_timeout_s + timing_s)


def num_oracles(*, memory_bytes: int) -> int:
    """Number of oracles, each of which draws inputs for one problem at a time. More would not be
    faster: the driver makes one context at a time."""
    return max(1, min(MAX_ORACLES, int(ORACLES_SHARE * memory_bytes) // CONTEXT_BYTES))


def num_executors(*, memory_bytes: int) -> int:
    """Number of executors, each of which has one candidate's program at a time. As many more wait
    to take the place of one that a fault has ended: siblings of one problem fault together."""
    return max(1, min(MAX_EXECUTORS, int(EXECUTORS_SHARE * memory_bytes) // CONTEXT_BYTES))


def num_contexts(*, memory_bytes: int) -> int:
    """Maximum number of contexts that a judge has on its card: its own and those of baselines,
    executors, their spares and oracles."""
    executors = 2 * num_executors(memory_bytes=memory_bytes)
    return 1 + NUM_BASELINES + executors + num_oracles(memory_bytes=memory_bytes)
