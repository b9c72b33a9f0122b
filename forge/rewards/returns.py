"""Discounted return of each turn of a rollout, after Kevin (arXiv 2507.11948).

Kevin:          R_t = Σ_{i=t}^{last} γ^(i-t) r_i
Our variant:    R_t = Σ_{j=0}^{H-1} γ^j r_min(t+j, last)

    r_i   reward of turn i
    last  index of the last turn taken
    γ     discount, 0.4
    H     max_turns

Every turn looks H turns ahead, and the last answer counts for turns that were not taken. There are
two reasons. A rollout that stops early with a good answer loses nothing against one that repeats
the answer in the remaining turns. And a group whose turns all earn the same has equal returns; with
Kevin's sum, its first turns would come out above the mean and its last turns below, which trains
the position of an answer instead of its quality.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal


def turn_returns(
    rewards: Sequence[float],
    *,
    gamma: float,
    max_turns: int,
    credit: Literal["turn", "trajectory"] = "turn",
) -> tuple[float, ...]:
    """Return of each turn taken.

    Args:
        rewards: One per turn, in order. [num_turns]
        gamma: Discount, 0 to 1.
        max_turns: Turns that each return looks ahead.
        credit: `turn`: each turn has its own return; `trajectory`: all have that of the first.
    """
    last = len(rewards) - 1
    returns = tuple(
        sum(gamma**ahead * rewards[min(turn + ahead, last)] for ahead in range(max_turns))
        for turn in range(len(rewards))
    )
    return returns[:1] * len(returns) if credit == "trajectory" else returns
