"""Advantages within a group.

    A_k = (R_k - mean(R)) / std(R)    scale = "group": GRPO (arXiv 2402.03300, section 4.1.2)
    A_k =  R_k - mean(R)              scale = "none": Dr. GRPO (arXiv 2503.20783)

    R_k      return of turn k (`returns.py`)
    mean(R)  over all unmasked turns of all rollouts of the group
    std(R)   population standard deviation over the same turns

GRPO has one reward per rollout, spread over its tokens. Our variant has one return per turn: each
turn is a sample of its own, so all turns of the group share mean and deviation. Dr. GRPO leaves out
the division since it gives groups with nearly equal returns the same weight as all others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

FLAT_RANGE = 1e-6
"""Largest range of returns that counts as equal: differences below it are rounding."""


def group_advantages(
    returns: Sequence[Sequence[float | None]], *, scale: Literal["group", "none"]
) -> list[list[float | None]]:
    """Advantage of each turn, None for a masked return. [rollout][turn], as `returns`.

    Advantages of unmasked turns sum to zero; adding a constant to every return changes nothing. In
    a flat group there is no division.
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
    """True if all unmasked returns are equal, or there is none: the group gives no gradient."""
    values = [value for row in returns for value in row if value is not None]
    return not values or max(values) - min(values) <= FLAT_RANGE
