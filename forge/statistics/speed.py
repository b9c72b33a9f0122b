"""Speed of evaluated kernels: fast_p, geometric mean of the speed-ups, share of the roofline.

Called by `evaluation`. fast_p (arXiv 2502.10517, section 3.2) is the share of answers that are
correct and more than p times as fast as the baseline; p = 0 asks for correctness alone. Each figure
is a mean over problems with a 95 % interval from resampled problems (`passk`), for two kinds of
answers: those of one turn, and the best of a rollout up to a turn.

An answer that was not judged counts nowhere. A correct kernel without a time makes every figure of
speed unknown (None): on a CPU only p = 0 has a value.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge.records import End, Trajectory, Verdict
from forge.statistics.passk import Estimate, estimate_difference, estimate_mean

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
"""Values of p."""
FLOOR = 0.1
"""Speed-up that counts for an answer without a correct kernel, and for a slower one, in the
geometric mean over all answers. A mean without a floor would be 0."""

Rollout = tuple[str, Trajectory]
"""A problem's id and one of its rollouts."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Outcome of one answer."""

    is_correct: bool
    speedup: float | None = None
    """Baseline time over kernel time; None if wrong or not timed."""
    roofline_share: float | None = None


WRONG = Speed(is_correct=False)
Answers = Mapping[str, Sequence[Speed]]
"""Answers by problem; no problem is without one."""


def measure_speed(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Figures of speed of sampled rollouts, as JSON.

    Returns:
        `floor`; `by_turn`: turn to the figures of the answers in that turn, among the rollouts that
        reached it; `best_by_turn`: turn to the figures of the best answers up to it, of all
        rollouts. Figures are those of `_figures`.
    """
    num_turns = max((len(trajectory.turns) for _, trajectory in rollouts), default=0)
    turns = range(max(num_turns, 1))
    return {
        "floor": FLOOR,
        "by_turn": {str(n): _figures(_in_turn(rollouts, n)) for n in turns},
        "best_by_turn": {str(n): _figures(_best_until(rollouts, n)) for n in turns},
    }


def _figures(answers: Answers) -> dict[str, Any]:
    """Numbers of answers and problems; `fast_p` by p, `geomean_correct`, `geomean_all` and
    `roofline` as [value, low, high], None where nothing is known; the numbers of kernels and
    problems in `geomean_correct`."""
    correct = {
        name: timed
        for name, of in answers.items()
        if (timed := [each.speedup for each in of if each.is_correct and each.speedup])
    }
    is_known = bool(correct) and not any(
        _is_untimed(each) for of in answers.values() for each in of
    )
    shares = {
        name: known
        for name, of in answers.items()
        if (known := [each.roofline_share for each in of if each.roofline_share is not None])
    }
    return {
        "num": sum(map(len, answers.values())),
        "num_problems": len(answers),
        "num_correct": sum(each.is_correct for of in answers.values() for each in of),
        "num_timed": sum(map(len, correct.values())),
        "num_timed_problems": len(correct),
        "fast_p": {f"{p:g}": _interval(_fast_p(answers, p)) for p in THRESHOLDS},
        "geomean_correct": _interval(_geometric_mean(correct)) if correct else None,
        "geomean_all": _interval(_geometric_mean(_floored(answers))) if is_known else None,
        "roofline": _interval(estimate_mean([_mean(of) for of in shares.values()])),
    }


def _in_turn(rollouts: Iterable[Rollout], number: int) -> Answers:
    """The judged answers of one turn. A first turn whose prompt did not fit is wrong."""
    found: dict[str, list[Speed]] = defaultdict(list)
    for problem_id, trajectory in rollouts:
        if not trajectory.turns and number == 0:
            found[problem_id].append(WRONG)
        for turn in trajectory.turns[number : number + 1]:
            if turn.verdict.status.is_scored:
                found[problem_id].append(_speed(turn.verdict))
    return found


def _best_until(rollouts: Iterable[Rollout], number: int) -> Answers:
    """The best answer up to a turn of each rollout that counts: that is all without those that a
    fault ended before a correct answer."""
    found: dict[str, list[Speed]] = defaultdict(list)
    for problem_id, trajectory in rollouts:
        seen = [_speed(turn.verdict) for turn in trajectory.turns[: number + 1]]
        best = max(seen, key=_rank, default=WRONG)
        if best.is_correct or not _is_cut(trajectory, number):
            found[problem_id].append(best)
    return found


def _is_cut(trajectory: Trajectory, number: int) -> bool:
    """True if a fault ended the rollout in this turn or before."""
    is_faulty = trajectory.end in (End.UNJUDGEABLE, End.INFRA)
    return is_faulty and len(trajectory.turns) <= number + 1


def _speed(verdict: Verdict) -> Speed:
    if not verdict.is_correct:
        return WRONG
    timing = verdict.timing
    if timing is None:
        return Speed(is_correct=True)
    return Speed(is_correct=True, speedup=timing.speedup, roofline_share=timing.roofline_share)


def _rank(speed: Speed) -> tuple[bool, float]:
    return speed.is_correct, speed.speedup or 0.0


def _is_untimed(speed: Speed) -> bool:
    return speed.is_correct and speed.speedup is None


def _fast_p(answers: Answers, p: float) -> Estimate | None:
    """None if there are no answers, or if p asks for a time that was not measured."""
    if p and any(_is_untimed(each) for of in answers.values() for each in of):
        return None

    def is_fast(speed: Speed) -> bool:
        return speed.is_correct and (not p or (speed.speedup or 0.0) > p)

    return estimate_mean([_mean([float(is_fast(each)) for each in of]) for of in answers.values()])


def _floored(answers: Answers) -> dict[str, list[float]]:
    return {
        name: [max(FLOOR, each.speedup or 0.0) if each.is_correct else FLOOR for each in of]
        for name, of in answers.items()
    }


def _geometric_mean(speedups: Mapping[str, Sequence[float]]) -> Estimate:
    """exp of the mean over problems of the mean logarithm; unbounded for a single problem."""
    logs = [_mean([math.log(each) for each in of]) for of in speedups.values()]
    found = estimate_difference(logs)
    if found is None:
        return Estimate(value=math.exp(logs[0]), low=0.0, high=math.inf, num_problems=1)
    return Estimate(
        value=math.exp(found.value),
        low=math.exp(found.low),
        high=math.exp(found.high),
        num_problems=len(logs),
    )


def _interval(estimate: Estimate | None) -> list[float | None] | None:
    """Value and interval; an open end is None."""
    if estimate is None:
        return None
    return [estimate.value, estimate.low, estimate.high if estimate.high < math.inf else None]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
