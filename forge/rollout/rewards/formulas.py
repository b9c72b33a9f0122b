"""Rewards of verdicts, returns of turns, advantages in a group. Pure functions.

Reward of a verdict, term by term; each term is stored:

    r = compiled · [kernel compiled and launched]  +  correct · [correct]
        + own_share · share of the work by the candidate's own kernels · [correct]
        + speedup · f(s) · [correct and timed]
        + improvement · max(0, f(s) - f(s of the attempt before)) · [both correct and timed]
        + rejected, compile_error (penalties)

    s                    lower end of the interval of the speed-up
    f(s)                 shape = "log": ln(min(s, cap) / floor); "linear": min(s, cap) - floor;
                         at least 0
    cap, floor           speedup_cap, speedup_floor
    compiled, speedup …  weights of the table [reward]

The lower end keeps luck in timing from paying; the logarithm makes each doubling worth the same,
and the straight line makes the fastest kernels worth the most.
To add a term: give it a weight in `[reward]` (`forge/config/schema`), compute it here, and extend
the test that no constant policy earns half of a correct first turn (`tests/rollout/rewards`).

Discounted return of each turn of a rollout, after Kevin (arXiv 2507.11948):

    Kevin:          R_t = Σ_{i=t}^{last} γ^(i-t) r_i
    Our variant:    R_t = Σ_{j=0}^{H-1} γ^j r_min(t+j, last)

    r_i   reward of turn i
    last  index of the last turn taken
    γ     discount, 0.4
    H     max_turns

credit = "turn" is our variant, "kevin" Kevin's sum, and "trajectory" gives all turns our variant's
return of the first, as TritonForge has one return for a whole conversation.

Every turn looks H turns ahead, and the last answer counts for turns that were not taken. There are
two reasons. A rollout that stops early with a good answer loses nothing against one that repeats
the answer in the remaining turns. And a group whose turns all earn the same has equal returns; with
Kevin's sum, its first turns would come out above the mean and its last turns below, which trains
the position of an answer instead of its quality.

Advantages within a group:

    A_k = (R_k - mean(R)) / std(R)    scale = "group": GRPO (arXiv 2402.03300, section 4.1.2)
    A_k =  R_k - mean(R)              scale = "none": Dr. GRPO (arXiv 2503.20783)

    R_k      return of turn k
    mean(R)  over all unmasked turns of all rollouts of the group; advantage = "turn": over those
             of the same index
    std(R)   population standard deviation over the same turns

With leave_one_out the mean is that of the others, as in RLOO (arXiv 2402.14740), which multiplies
R_k - mean(R) by n / (n - 1) for n turns.

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


def reward_terms(
    verdict: Verdict, table: RewardTable, *, before: Verdict | None = None
) -> dict[str, float] | None:
    """Terms of the reward, which is their sum; None if the verdict is not scored (infra error).
    `before`: Verdict of the attempt before, in the same rollout.

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
        if table.own_share and verdict.own_share is not None:
            terms["own_share"] = table.own_share * verdict.own_share
        speed, last = _speed(verdict, table), before and _speed(before, table)
        if speed is not None:
            terms["speedup"] = table.speedup * speed
        if table.improvement and speed is not None and last is not None:
            terms["improvement"] = table.improvement * max(0.0, speed - last)
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


def _speed(verdict: Verdict, table: RewardTable) -> float | None:
    """f(s); None for a verdict that is not correct, or was not timed."""
    if not verdict.is_correct or verdict.timing is None:
        return None
    capped = min(max(verdict.timing.speedup_low, 1e-6), table.speedup_cap)
    floor = table.speedup_floor
    value = math.log(capped / floor) if table.shape == "log" else capped - floor
    return max(value, 0.0)


def turn_returns(
    rewards: Sequence[float], *, gamma: float, max_turns: int,
    credit: Literal["turn", "kevin", "trajectory"] = "turn",
) -> tuple[float, ...]:  # fmt: skip
    """Return of each turn taken.

    Args:
        rewards: One per turn, in order. [num_turns]
        gamma: Discount, 0 to 1.
        max_turns: Turns that each return looks ahead; with `kevin` as many as were taken.
        credit: `turn`, `kevin`: each turn has its own return; `trajectory`: all have that of the
            first.
    """
    last = len(rewards) - 1
    ahead = [last - turn + 1 if credit == "kevin" else max_turns for turn in range(len(rewards))]
    returns = tuple(
        sum(gamma**step * rewards[min(turn + step, last)] for step in range(ahead[turn]))
        for turn in range(len(rewards))
    )
    return returns[:1] * len(returns) if credit == "trajectory" else returns


def group_advantages(
    returns: Sequence[Sequence[float | None]], *, scale: Literal["group", "none"],
    advantage: Literal["group", "turn"] = "group", leave_one_out: bool = False,
) -> list[list[float | None]]:  # fmt: skip
    """Advantage of each turn, None for a masked return. [rollout][turn], as `returns`.

    Advantages of unmasked turns sum to zero; adding a constant to every return changes nothing.
    Turns that are compared and have equal returns are not divided.
    """
    found: list[list[float | None]] = [[None] * len(row) for row in returns]
    for compared in _compared(returns, advantage):
        values = [value for _, _, value in compared]
        mean = sum(values) / len(values)
        std = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        divisor = std if scale == "group" and not _are_equal(values) else 1.0
        if leave_one_out and len(values) > 1:
            divisor *= (len(values) - 1) / len(values)
        for rollout, turn, value in compared:
            found[rollout][turn] = (value - mean) / divisor
    return found


def is_flat(
    returns: Sequence[Sequence[float | None]], *, advantage: Literal["group", "turn"] = "group"
) -> bool:
    """True if all unmasked returns that are compared are equal, or there is none: the group gives
    no gradient."""
    sets = _compared(returns, advantage)
    return all(_are_equal([value for _, _, value in compared]) for compared in sets)


def _compared(
    returns: Sequence[Sequence[float | None]], advantage: Literal["group", "turn"]
) -> list[list[tuple[int, int, float]]]:
    """Rollout, turn and return of the unmasked turns, in the sets that share a mean."""
    sets: dict[int, list[tuple[int, int, float]]] = {}
    for rollout, row in enumerate(returns):
        for turn, value in enumerate(row):
            if value is not None:
                key = turn if advantage == "turn" else 0
                sets.setdefault(key, []).append((rollout, turn, value))
    return list(sets.values())


def _are_equal(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= FLAT_RANGE
