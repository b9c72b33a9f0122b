"""From played groups to an Evaluation: the figures that the three evaluations of a run are compared
by.

Called by the runner when an evaluation has been played (in a worker thread: the bootstrap takes
some 50 ms), and by whoever recomputes one from stored turns. Promises: a turn that failed for our
reasons counts neither for nor against; a problem whose prompt does not fit the context counts as
unsolved, so that pass@1 is always of all problems that were asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from forge.records import End, Evaluation, Group, Problem, Trajectory, Turn
from forge.statistics.passk import Estimate, Tally, estimate_mean, estimate_pass_at_k

Rollouts = list[tuple[Problem, Trajectory]]

Answer = tuple[Problem, Turn | None]
"""A first turn; None where the prompt did not fit, which fails at everything."""


def evaluate_groups(
    groups: Sequence[Group],
    problems: Iterable[Problem],
    *,
    stage: str,
    step: int,
    version: int,
    max_turns: int,
    at: float,
) -> Evaluation:
    """Computes an evaluation; pass@1 counts first turns at temperature 1, greedy rollouts are
    apart.

    Groups are those played for evaluation, of one policy; all problems they name must be given.
    Where nothing could be judged, the rates are 0 with the interval 0..1.
    """
    by_id = {problem.problem_id: problem for problem in problems}
    sampled: Rollouts = []
    greedy: Rollouts = []
    for group in groups:
        into = greedy if group.is_greedy else sampled
        into.extend((by_id[group.problem_id], trajectory) for trajectory in group.trajectories)
    first = _first_answers(sampled)
    tallies = _tallies(first)
    at_k = _pass_at_ks(tallies)
    multi = _multi(sampled)
    return Evaluation(
        stage=stage,
        step=step,
        policy_version=version,
        at=at,
        num_problems=len({problem.problem_id for problem, _ in sampled + greedy}),
        num_samples=_most_rollouts(sampled),
        max_turns=max_turns,
        pass_at_1=at_k[1].value if at_k else 0.0,
        ci_low=at_k[1].low if at_k else 0.0,
        ci_high=at_k[1].high if at_k else 1.0,
        pass_at_k={k: estimate.value for k, estimate in at_k.items()},
        pass_at_1_greedy=_greedy(greedy),
        pass_at_1_multi=multi["value"],
        compile_rate=_mean_by_problem(first, _is_compiled),
        detail={
            "by_family": _parts(first, lambda problem: problem.family),
            "by_level": _parts(first, lambda problem: str(problem.level)),
            "by_turn": _by_turn(sampled),
            "pass_at_k_ci": {str(k): [each.low, each.high] for k, each in at_k.items()},
            "multi": multi,
            "tallies": {name: [tally.num, tally.correct] for name, tally in tallies.items()},
            **_counts(sampled + greedy),
        },
    )


def _counts(rollouts: Rollouts) -> dict[str, int]:
    turns = [turn for _, trajectory in rollouts for turn in trajectory.turns]
    return {
        "num_turns": len(turns),
        "num_masked": sum(not turn.verdict.status.is_scored for turn in turns),
        "num_context_full": sum(t.end is End.CONTEXT_FULL for _, t in rollouts),
        "num_unfit_problems": len({p.problem_id for p, t in rollouts if not t.turns}),
    }


def _first_answers(rollouts: Rollouts) -> list[Answer]:
    """Those that count."""
    answers = [(problem, t.turns[0] if t.turns else None) for problem, t in rollouts]
    return [(p, turn) for p, turn in answers if turn is None or turn.verdict.status.is_scored]


def _is_correct(turn: Turn) -> bool:
    return turn.verdict.is_correct


def _is_compiled(turn: Turn) -> bool:
    return turn.verdict.is_compiled


def _multi_counts(trajectory: Trajectory) -> bool:
    """A rollout that we failed counts only if it had succeeded before."""
    return _is_solved(trajectory) or trajectory.end is not End.INFRA


def _is_cut_short(trajectory: Trajectory) -> bool:
    """We failed it after answers that did not solve it; a later one might have."""
    return not _multi_counts(trajectory) and trajectory.turns[0].verdict.status.is_scored


def _is_solved(trajectory: Trajectory) -> bool:
    return any(turn.verdict.is_correct for turn in trajectory.turns)


def _tallies(answers: list[Answer]) -> dict[str, Tally]:
    found = _claims(answers, _is_correct)
    return {name: Tally(num=len(each), correct=sum(each)) for name, each in found.items()}


def _most_rollouts(rollouts: Rollouts) -> int:
    counts: dict[str, int] = defaultdict(int)
    for problem, _ in rollouts:
        counts[problem.problem_id] += 1
    return max(counts.values(), default=0)


def _pass_at_ks(tallies: dict[str, Tally]) -> dict[int, Estimate]:
    """pass@k for every k that some problem has the samples for."""
    counts = list(tallies.values())
    ks = range(1, 1 + max((tally.num for tally in counts), default=0))
    return {k: found for k in ks if (found := estimate_pass_at_k(counts, k)) is not None}


def _greedy(rollouts: Rollouts) -> float | None:
    first = _first_answers(rollouts)
    return _mean_by_problem(first, _is_correct) if first else None


def _multi(rollouts: Rollouts) -> dict[str, float]:
    """Rollouts with a correct turn, as pass_at_1 is: a mean over problems with its interval.

    A rollout that we cut short is left out of the mean, which favours those that succeed early;
    the interval therefore runs from "none of them would have been solved" to "all of them".
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


def _solved_share(rollouts: Rollouts, *, cut_short: bool | None) -> Estimate | None:
    """Solved rollouts, those cut short counted as `cut_short` or, for None, not at all."""
    found: dict[str, list[bool]] = defaultdict(list)
    for problem, trajectory in rollouts:
        if _multi_counts(trajectory):
            found[problem.problem_id].append(_is_solved(trajectory))
        elif cut_short is not None and _is_cut_short(trajectory):
            found[problem.problem_id].append(cut_short)
    return estimate_mean([sum(each) / len(each) for each in found.values()])


def _claims(answers: list[Answer], claim: Callable[[Turn], bool]) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = defaultdict(list)
    for problem, turn in answers:
        found[problem.problem_id].append(turn is not None and claim(turn))
    return found


def _mean_by_problem(answers: list[Answer], claim: Callable[[Turn], bool]) -> float:
    means = [sum(each) / len(each) for each in _claims(answers, claim).values()]
    return sum(means) / len(means) if means else 0.0


def _parts(answers: list[Answer], name: Callable[[Problem], str]) -> dict[str, dict[str, Any]]:
    found: dict[str, list[Answer]] = defaultdict(list)
    for problem, turn in answers:
        found[name(problem)].append((problem, turn))
    return {part: _part(found[part]) for part in sorted(found)}


def _part(answers: list[Answer]) -> dict[str, Any]:
    tallies = _tallies(answers)
    estimate = estimate_pass_at_k(list(tallies.values()), 1)
    return {
        "num": len(answers),
        "num_problems": len(tallies),
        "pass_at_1": estimate.value if estimate else 0.0,
        "ci_low": estimate.low if estimate else 0.0,
        "ci_high": estimate.high if estimate else 1.0,
        "compile_rate": _mean_by_problem(answers, _is_compiled),
    }


def _by_turn(rollouts: Rollouts) -> dict[str, dict[str, Any]]:
    """Turn t: of the rollouts that came to it, how many were correct there; and of all, how many
    by then.
    """
    counted = [trajectory for _, trajectory in rollouts if _multi_counts(trajectory)]
    out: dict[str, dict[str, Any]] = {}
    for number in range(max((len(t.turns) for t in counted), default=0)):
        here = [t.turns[number] for t in counted if len(t.turns) > number]
        scored = [turn for turn in here if turn.verdict.status.is_scored]
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
