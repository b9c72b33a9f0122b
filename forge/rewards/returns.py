"""Per-turn returns of one rollout (Kevin, arXiv 2507.11948): return_t = Σ_{i≥t} γ^(i-t) r_i.

    γ    discount, 0.4
    r_i  reward of turn i

Our variant: a rollout that stops early because it is good enough is paid as if it had repeated its
last answer for the
turns it did not take. Otherwise stopping at a correct kernel would earn less than idling through
the remaining turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence


def turn_returns(
    rewards: Sequence[float],
    *,
    gamma: float,
    max_turns: int,
    stopped_early: bool,
    credit: Literal["turn", "trajectory"] = "turn",
) -> tuple[float, ...]:
    """Return of each turn taken.

    Args:
        rewards: One a turn, in order. [num_turns]
        gamma: Discount in 0..1.
        max_turns: Turns that the rollout could have taken.
        stopped_early: It ended because its last answer was good enough.
        credit: `turn` gives each turn its own return; `trajectory` gives all turns the first one's.
    """
    if not rewards:
        return ()
    repeats = max_turns - len(rewards) if stopped_early else 0
    future = sum(rewards[-1] * gamma**i for i in range(1, repeats + 1))
    returns: list[float] = []
    for index, reward in enumerate(reversed(rewards)):
        future = reward + (future if index == 0 else gamma * future)
        returns.append(future)
    returns.reverse()
    if credit == "trajectory":
        return (returns[0],) * len(returns)
    return tuple(returns)
