"""Figures of whole rollouts: the share solved in any turn, and results by turn.

Used by `statistics.evaluation`. A rollout that a fault of the machinery ended counts only if it was
solved before.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from forge.records import End, Problem, Trajectory
from forge.statistics.passk import Estimate, estimate_mean

Rollouts = list[tuple[Problem, Trajectory]]


def solved_in_any_turn(rollouts: Rollouts) -> dict[str, float]:
    """Share of rollouts with a correct turn, a mean over problems, with its interval.

    Rollouts that a fault cut short are left out of the mean, which favours early successes; the
    interval therefore reaches from none of them solved to all of them solved.
    """
    value = _solved_share(rollouts, cut_short=None)
    if value is None:
        return {"value": 0.0, "ci_low": 0.0, "ci_high": 1.0, "num_cut_short": 0}
    low, high = (_solved_share(rollouts, cut_short=solved) or value for solved in (False, True))
    return {
        "value": value.value,
        "ci_low": low.low,
        "ci_high": high.high,
        "num_cut_short": sum(_is_cut_short(trajectory) for _, trajectory in rollouts),
    }


def rates_by_turn(rollouts: Rollouts) -> dict[str, dict[str, Any]]:
    """Rates of each turn: among rollouts that reached it, and the share of all solved by then."""
    counted = [trajectory for _, trajectory in rollouts if _counts(trajectory)]
    out: dict[str, dict[str, Any]] = {}
    for number in range(max((len(t.turns) for t in counted), default=0)):
        reached = [t.turns[number] for t in counted if len(t.turns) > number]
        scored = [turn for turn in reached if turn.verdict.status.is_scored]
        solved = sum(
            any(turn.verdict.is_correct for turn in t.turns[: number + 1]) for t in counted
        )
        out[str(number)] = {
            "num": len(scored),
            "pass_at_1": sum(turn.verdict.is_correct for turn in scored) / max(1, len(scored)),
            "compile_rate": sum(turn.verdict.is_compiled for turn in scored) / max(1, len(scored)),
            "solved_by_then": solved / len(counted),
        }
    return out


def _solved_share(rollouts: Rollouts, *, cut_short: bool | None) -> Estimate | None:
    """Share of solved rollouts; those cut short count as `cut_short`, or not at all for None."""
    found: dict[str, list[bool]] = defaultdict(list)
    for problem, trajectory in rollouts:
        if _counts(trajectory):
            found[problem.problem_id].append(_is_solved(trajectory))
        elif cut_short is not None and _is_cut_short(trajectory):
            found[problem.problem_id].append(cut_short)
    return estimate_mean([sum(each) / len(each) for each in found.values()])


def _counts(trajectory: Trajectory) -> bool:
    return _is_solved(trajectory) or trajectory.end is not End.INFRA


def _is_cut_short(trajectory: Trajectory) -> bool:
    """True if a fault ended it after wrong answers: a later turn might have solved it."""
    return not _counts(trajectory) and trajectory.turns[0].verdict.status.is_scored


def _is_solved(trajectory: Trajectory) -> bool:
    return any(turn.verdict.is_correct for turn in trajectory.turns)
