"""Per-turn returns of one rollout, after Kevin (arXiv 2507.11948): R_t = Σ_{i≥t} γ^(i-t) r_i.

    γ    discount, 0.4
    r_i  reward of turn i
    H    max_turns

Our variant: every turn looks H turns ahead, and the last answer stands for turns that were not
taken:

    R_t = Σ_{j=0}^{H-1} γ^j r_min(t+j, last)

Two reasons. A rollout that stops early because it is good enough loses nothing against one that
idles through the remaining turns. And a group whose turns all earn the same has equal returns: with
the plain sum, first turns come out above the group's mean and last turns below it whatever they
did, which trains the position of an answer, not its quality.
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
        rewards: One a turn, in order. [num_turns]
        gamma: Discount in 0..1.
        max_turns: Turns that the rollout could have taken: how far each return looks ahead.
        credit: `turn` gives each turn its own return; `trajectory` gives all turns the first one's.

    """
    last = len(rewards) - 1
    returns = tuple(
        sum(gamma**ahead * rewards[min(turn + ahead, last)] for ahead in range(max_turns))
        for turn in range(len(rewards))
    )
    return returns[:1] * len(returns) if credit == "trajectory" else returns
