"""Rewards of verdicts, returns of turns, advantages in a group. Pure functions.

Reward of a verdict, term by term; each term is stored:

    r = compiled · [kernel compiled and launched]  +  correct · [correct]
        + speedup · ln(min(s, cap)) · [correct and timed]  +  rejected, compile_error (penalties)

    s                    lower end of the interval of the speed-up
    cap                  speedup_cap
    compiled, speedup …  weights of the table [reward]

The lower end keeps luck in timing from paying; the logarithm makes each doubling worth the same.
To add a term: give it a weight in `[reward]` (`forge/config/schema`), compute it here, and extend
the test that no constant policy earns half of a correct first turn (`tests/rollout/rewards`).

Discounted return of each turn of a rollout, after Kevin (arXiv 2507.11948):

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

Advantages within a group:

    A_k = (R_k - mean(R)) / std(R)    scale = "group": GRPO (arXiv 2402.03300, section 4.1.2)
    A_k =  R_k - mean(R)              scale = "none": Dr. GRPO (arXiv 2503.20783)

    R_k      return of turn k
    mean(R)  over all unmasked turns of all rollouts of the group
    std(R)   population standard deviation over the same turns

GRPO has one reward per rollout, spread over its tokens. Our variant has one return per turn: each
turn is a sample of its own, so all turns of the group share mean and deviation. Dr. GRPO leaves out
the division since it gives groups with nearly equal returns the same weight as all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from forge.records import Status, Verdict

if TYPE_CHECKING:
    from forge.config.schema import RewardTable

FLAT_RANGE = 1e-6
"""Largest range of returns that counts as equal: differences below it are rounding."""


def reward_terms(verdict: Verdict, table: RewardTable) -> dict[str, float] | None:
    """Terms of the reward, which is their sum; None if the verdict is not scored (infra error).

    `compiled` is paid only if the candidate's own kernel compiled, launched and wrote its output
    (`is_compiled`), so that a decoy earns nothing.
    """
    if not verdict.status.is_scored:
        return None
    terms: dict[str, float] = {}
    if verdict.is_compiled:
        terms["compiled"] = table.compiled
    if verdict.is_correct:
        terms["correct"] = table.correct
        if verdict.timing is not None:
            terms["speedup"] = table.speedup * _log_speedup(verdict.timing.speedup_low, table)
    if verdict.status is Status.REJECTED and table.rejected:
        terms["rejected"] = table.rejected
    if verdict.status is Status.COMPILE_ERROR and table.compile_error:
        terms["compile_error"] = table.compile_error
    return terms


def is_good_enough(verdict: Verdict, table: RewardTable) -> bool:
    """True if a rollout may stop here: correct, and fast enough if it was timed."""
    if not verdict.is_correct:
        return False
    return verdict.timing is None or verdict.timing.speedup_low >= table.stop_at_speedup


def _log_speedup(speedup_low: float, table: RewardTable) -> float:
    """ln(min(speedup_low, cap)), at least 0 unless `slower_penalty` is set."""
    value = math.log(min(max(speedup_low, 1e-6), table.speedup_cap))
    return value if table.slower_penalty else max(value, 0.0)


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
