"""An Evaluation from played groups: the figures by which the evaluations of a run are compared.

The evaluate stage calls it in a worker thread (the bootstrap takes 50 ms); stored turns give the
same figures again. A turn that was not judged, since its problem cannot be or the machinery failed,
counts neither for nor against; a rollout that one ended counts only if it was solved before. A
problem whose prompt does not fit the context counts as unsolved. The denominator of pass@k and of
the other rates is therefore the judged problems, whose number is stored beside those that cannot be
judged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from forge.records import End, Evaluation, Group, Problem, Reason, Status, Trajectory, Turn
from forge.statistics.passk import Estimate, Tally, estimate_mean, estimate_pass_at_k
from forge.statistics.speed import measure_speed

Rollouts = list[tuple[Problem, Trajectory]]

Answer = tuple[Problem, Turn | None]
"""A problem and a first turn; None if the prompt did not fit, which counts as a failure."""


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
    """Computes an evaluation; pass@1 counts sampled first turns, greedy rollouts are separate.

    If no turn was judged, the rates are 0 with the interval 0..1.

    Args:
        groups: evaluation groups of one policy. Their order has no effect: the same answers give
            the same intervals.
        problems: all problems of the groups, or more.
        stage: name of the evaluation, such as `eval-0` or `grpo-3@5`.
        at: Unix time in seconds.

    Raises:
        KeyError: a group's problem is not in `problems`.
    """
    by_id = {problem.problem_id: problem for problem in problems}
    sampled: Rollouts = []
    greedy: Rollouts = []
    for group in sorted(groups, key=lambda each: (each.problem_id, each.group_id)):
        into = greedy if group.is_greedy else sampled
        into.extend((by_id[group.problem_id], trajectory) for trajectory in group.trajectories)
    first, first_greedy = _first_answers(sampled), _first_answers(greedy)
    judged = {problem.problem_id for problem, _ in first + first_greedy}
    tallies = _tallies(first)
    at_k = _pass_at_ks(tallies)
    multi = _solved_in_any_turn(sampled)
    return Evaluation(
        stage=stage,
        step=step,
        policy_version=version,
        at=at,
        num_problems=len({problem.problem_id for problem, _ in sampled + greedy}),
        num_samples=max(Counter(p.problem_id for p, _ in sampled).values(), default=0),
        max_turns=max_turns,
        pass_at_1=at_k[1].value if at_k else 0.0,
        ci_low=at_k[1].low if at_k else 0.0,
        ci_high=at_k[1].high if at_k else 1.0,
        pass_at_k={k: estimate.value for k, estimate in at_k.items()},
        pass_at_1_greedy=_mean_by_problem(first_greedy, _is_correct) if first_greedy else None,
        pass_at_1_multi=multi["value"],
        compile_rate=_mean_by_problem(first, _is_compiled),
        detail={
            "by_family": _parts(first, lambda problem: problem.family),
            "by_level": _parts(first, lambda problem: str(problem.level)),
            "by_turn": _rates_by_turn(sampled),
            "pass_at_k_ci": {str(k): [each.low, each.high] for k, each in at_k.items()},
            "multi": multi,
            "compile_rate_ci": _interval_by_problem(first, _is_compiled),
            "speed": measure_speed([(problem.problem_id, each) for problem, each in sampled]),
            "tallies": {name: [tally.num, tally.correct] for name, tally in tallies.items()},
            "num_judged_problems": len(judged),
            "unjudgeable": _unjudgeable(sampled + greedy, judged=judged),
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


def _unjudgeable(rollouts: Rollouts, *, judged: Collection[str]) -> dict[str, int]:
    """Number of problems that could not be judged, by reason; a problem counts once."""
    reasons = {
        problem.problem_id: Reason.of(verdict.reason) or verdict.reason
        for problem, trajectory in rollouts
        for verdict in [turn.verdict for turn in trajectory.turns[:1]]
        if verdict.status is Status.UNJUDGEABLE and problem.problem_id not in judged
    }
    return dict(sorted(Counter(str(reason) for reason in reasons.values()).items()))


def _first_answers(rollouts: Rollouts) -> list[Answer]:
    """First turns that count: scored ones, and missing ones."""
    answers = [(problem, t.turns[0] if t.turns else None) for problem, t in rollouts]
    return [(p, turn) for p, turn in answers if turn is None or turn.verdict.status.is_scored]


def _is_correct(turn: Turn) -> bool:
    return turn.verdict.is_correct


def _is_compiled(turn: Turn) -> bool:
    return turn.verdict.is_compiled


def _tallies(answers: list[Answer]) -> dict[str, Tally]:
    found = _claims(answers, _is_correct)
    return {name: Tally(num=len(each), correct=sum(each)) for name, each in found.items()}


def _pass_at_ks(tallies: dict[str, Tally]) -> dict[int, Estimate]:
    """pass@k for each k up to the largest number of samples of a problem."""
    counts = list(tallies.values())
    ks = range(1, 1 + max((tally.num for tally in counts), default=0))
    return {k: found for k in ks if (found := estimate_pass_at_k(counts, k)) is not None}


def _claims(answers: list[Answer], claim: Callable[[Turn], bool]) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = defaultdict(list)
    for problem, turn in answers:
        found[problem.problem_id].append(turn is not None and claim(turn))
    return found


def _mean_by_problem(answers: list[Answer], claim: Callable[[Turn], bool]) -> float:
    """Mean over problems of the share of first turns for which the claim holds."""
    means = [sum(each) / len(each) for each in _claims(answers, claim).values()]
    return sum(means) / len(means) if means else 0.0


def _interval_by_problem(answers: list[Answer], claim: Callable[[Turn], bool]) -> list[float]:
    """Interval of `_mean_by_problem`; 0..1 without answers."""
    means = [sum(each) / len(each) for each in _claims(answers, claim).values()]
    found = estimate_mean(means)
    return [0.0, 1.0] if found is None else [found.low, found.high]


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


def _solved_in_any_turn(rollouts: Rollouts) -> dict[str, float]:
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


def _rates_by_turn(rollouts: Rollouts) -> dict[str, dict[str, Any]]:
    """Rates of each turn: among rollouts that reached it, and the share of all solved by then."""
    counted = [trajectory for _, trajectory in rollouts if _is_counted(trajectory)]
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
        if _is_counted(trajectory):
            found[problem.problem_id].append(_is_solved(trajectory))
        elif cut_short is not None and _is_cut_short(trajectory):
            found[problem.problem_id].append(cut_short)
    return estimate_mean([sum(each) / len(each) for each in found.values()])


def _is_counted(trajectory: Trajectory) -> bool:
    return _is_solved(trajectory) or not trajectory.end.is_unscored


def _is_cut_short(trajectory: Trajectory) -> bool:
    """True if a fault ended it after wrong answers: a later turn might have solved it."""
    return not _is_counted(trajectory) and trajectory.turns[0].verdict.status.is_scored


def _is_solved(trajectory: Trajectory) -> bool:
    return any(turn.verdict.is_correct for turn in trajectory.turns)
