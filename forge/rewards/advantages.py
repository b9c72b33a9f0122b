"""Group-relative advantages (GRPO, arXiv 2402.03300; without the division: Dr. GRPO, arXiv
2503.20783).

    A = (R - mean(R)) / std(R)     scale = "group"
    A =  R - mean(R)               scale = "none"

R runs over all unmasked turns of all rollouts of the group, since each turn is a sample of its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

FLAT_RANGE = 1e-6
"""Returns of a group that lie no further apart give no signal: differences are rounding."""


def group_advantages(
    returns: Sequence[Sequence[float | None]], *, scale: Literal["group", "none"]
) -> list[list[float | None]]:
    """Advantage of each turn, None where the return is None (masked). Shape follows `returns`:
    [rollout][turn].

    Advantages of unmasked turns sum to zero; adding a constant to every return changes nothing.
    """
    values = [value for row in returns for value in row if value is not None]
    if not values:
        return [[None] * len(row) for row in returns]
    mean = sum(values) / len(values)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    divisor = std if scale == "group" and not is_flat(returns) else 1.0
    return [
        [None if value is None else (value - mean) / divisor for value in row] for row in returns
    ]


def is_flat(returns: Sequence[Sequence[float | None]]) -> bool:
    """Whether all unmasked returns are equal, or there is none: no gradient comes out of the
    group."""
    values = [value for row in returns for value in row if value is not None]
    return not values or max(values) - min(values) <= FLAT_RANGE
