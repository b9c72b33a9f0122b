"""Reward of a verdict, term by term; each term is stored.

    r = compiled · [kernel compiled and launched]  +  correct · [correct]
        + speedup · ln(min(s, cap)) · [correct and timed]  +  rejected, compile_error (penalties)

    s                    lower end of the interval of the speed-up
    cap                  speedup_cap
    compiled, speedup …  weights of the table [reward]

The lower end keeps luck in timing from paying; the logarithm makes each doubling worth the same.

To add a term: give it a weight in `[reward]` (`forge/config/schema`), compute it here, and extend
the test that no constant policy earns half of a correct first turn (`tests/rewards`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from forge.records import Status, Verdict

if TYPE_CHECKING:
    from forge.config.schema import RewardTable


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
