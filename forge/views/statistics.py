"""Estimates with intervals: pass@k, fast_p, evaluations, paired comparisons. Pure and seeded.

Used by the evaluate stage, in a worker thread (the bootstrap takes 50 ms), by `forge compare` and
the benches; imports nothing but records. Stored turns give the same figures again.

pass@k (arXiv 2107.03374, eq. 1) is the chance that k of n samples, drawn without replacement,
include one of the c correct ones: 1 − C(n−c, k) / C(n, k), averaged over problems. Intervals are
95 % percentile intervals of a cluster bootstrap (Field and Welsh, Bootstrapping clustered data,
2007): samples of one problem are not independent, so problems are resampled, not samples.

fast_p (arXiv 2502.10517, section 3.2) is the share of answers that are correct and more than p
times as fast as the baseline; p = 0 asks for correctness alone. Figures of speed are means over
problems too, for two kinds of answers: those of one turn, and the best of a rollout up to a turn. A
correct kernel without a time makes every figure of speed unknown (None): on a CPU only p = 0 has a
value.

best@N is the best of k rollouts of up to t turns each, N = k t answers at most. The largest of k of
n values v_1 ≤ ... ≤ v_n, drawn without replacement, is Σ_i C(i−1, k−1) v_i / C(n, k) in the mean
(max_g@k of arXiv 2505.15201): pass@k if the values are 0 and 1, and unbiased for the logarithm of
the speed-up, too.

A turn that was not judged, since its problem cannot be or the machinery failed, counts neither for
nor against; a rollout that one ended counts only if it was solved before. A problem whose prompt
does not fit the context counts as unsolved. The denominator of pass@k and of the other rates is
therefore the judged problems, whose number is stored beside those that cannot be judged.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

from forge.records import End, Evaluation, Group, Problem, Reason, Status, Trajectory, Turn, Verdict

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
    named = [(problem.problem_id, each) for problem, each in sampled]
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
            **_by_source(first, {problem.problem_id: problem.origin for problem, _ in sampled}),
            "by_family": _parts(first, lambda problem: problem.family),
            "by_turn": _rates_by_turn(sampled),
            "pass_at_k_ci": {str(k): [each.low, each.high] for k, each in at_k.items()},
            "multi": multi,
            "compile_rate_ci": _interval_by_problem(first, _is_compiled),
            "speed": measure_speed(named),
            "best_at": best_at(named),
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


def _by_source(answers: list[Answer], sources: dict[str, str]) -> dict[str, Any]:
    """Parts by source, and by level of each source. With one source levels have no other name, and
    there are no sources.

    Args:
        sources: source of each problem, judged or not.
    """
    if len(set(sources.values())) < 2:
        return {"by_source": {}, "by_level": _parts(answers, lambda one: str(one.level))}
    levels = _parts(answers, lambda problem: f"{problem.origin} {problem.level}")
    return {
        "sources": sources,
        "by_source": _parts(answers, lambda problem: problem.origin),
        "by_level": levels,
    }


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


NUM_RESAMPLES = 2000
"""The 2.5 % percentile then has 50 resamples below it; 64 problems take 10 ms."""
TAIL = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Samples of one problem."""

    num: int
    correct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over problems, of a figure or of differences b − a, with its 95 % interval."""

    value: float
    low: float
    high: float
    num_problems: int


def pass_at_k(tally: Tally, k: int) -> float:
    """Unbiased pass@k of one problem, 1 − C(n−c, k) / C(n, k).

    Raises:
        ValueError: k is less than 1 or more than the problem's samples.
    """
    if not 1 <= k <= tally.num:
        raise ValueError(f"pass@{k} of {tally.num} samples")
    return 1.0 - math.comb(tally.num - tally.correct, k) / math.comb(tally.num, k)


def best_of(values: Sequence[float], k: int) -> float:
    """Mean of the largest of k values, drawn without replacement; see above.

    Raises:
        ValueError: k is less than 1 or more than the number of values.
    """
    if not 1 <= k <= len(values):
        raise ValueError(f"the best of {k} of {len(values)} values")
    total = math.comb(len(values), k)
    return math.fsum(
        math.comb(index, k - 1) / total * value for index, value in enumerate(sorted(values))
    )


def estimate_pass_at_k(tallies: Sequence[Tally], k: int, *, seed: int = 0) -> Estimate | None:
    """Mean pass@k of the problems with at least k samples; None if there are none."""
    return estimate_mean([pass_at_k(t, k) for t in tallies if t.num >= k], seed=seed)


def estimate_mean(values: Sequence[float], *, seed: int = 0) -> Estimate | None:
    """Mean of one number in 0..1 per problem, with its interval; None without problems.

    If all values are 0 or all are 1, every resample agrees; the open end is then the exact binomial
    (Clopper-Pearson) bound with problems as trials: 1 − 0.025^(1/n), 5.6 % for 0 of 64.
    """
    if not values:
        return None
    num = len(values)
    bound = 1.0 - TAIL ** (1.0 / num)
    if all(value == 0.0 for value in values):
        return Estimate(value=0.0, low=0.0, high=bound, num_problems=num)
    if all(value == 1.0 for value in values):
        return Estimate(value=1.0, low=1.0 - bound, high=1.0, num_problems=num)
    return _estimate(values, seed=seed, span=(0.0, 1.0))


def compare_paired(
    a: Mapping[str, Tally], b: Mapping[str, Tally], *, k: int = 1
) -> Estimate | None:
    """Difference of pass@k, paired by problem, which removes what makes a problem hard for both.

    Args:
        a: tallies by problem_id; b likewise.

    Returns:
        None if no problem has k samples in both.
    """
    both = [name for name in sorted(a.keys() & b.keys()) if min(a[name].num, b[name].num) >= k]
    if not both:
        return None
    values = [pass_at_k(b[name], k) - pass_at_k(a[name], k) for name in both]
    return _estimate(values, span=(-1.0, 1.0))


def estimate_difference(values: Sequence[float]) -> Estimate | None:
    """Mean of one unbounded difference per problem, with its interval; None for fewer than two
    problems: one says nothing about the others.
    """
    if len(values) < 2:
        return None
    return _estimate(values, span=(-math.inf, math.inf))


def _estimate(values: Sequence[float], *, span: tuple[float, float], seed: int = 0) -> Estimate:
    """The mean, and interpolated percentiles of the means of resampled problems.

    Args:
        span: all possible values; the interval of a single problem.
    """
    num = len(values)
    low, high = span
    if num > 1:
        means = sorted(math.fsum(draw(values)) / num for draw in _resamples(num, seed))
        low, high = _quantile(means, TAIL), _quantile(means, 1.0 - TAIL)
    return Estimate(value=math.fsum(values) / num, low=low, high=high, num_problems=num)


@lru_cache(maxsize=8)
def _resamples(num: int, seed: int) -> tuple[Callable[[Sequence[float]], tuple[float, ...]], ...]:
    """Draws of `num` problems with replacement, NUM_RESAMPLES times.

    All figures of an evaluation share them, which is 4 times faster.
    """
    rng = random.Random(seed)
    return tuple(itemgetter(*rng.choices(range(num), k=num)) for _ in range(NUM_RESAMPLES))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


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


def best_at(rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    """best@N of sampled rollouts, as JSON: a row for each number of turns and each number of
    rollouts (1, 2, 4, ... and all), over the problems that have so many.

    Returns:
        `turns`, `rollouts`; means of `answers` and `tokens` that they take on a problem; `solved`,
        `fast_1`, `fast_1_2` and `speedup` as [value, low, high]. speedup is the geometric mean
        with the floor. Figures of speed are None where a correct kernel has no time.
    """
    rows: list[dict[str, Any]] = []
    for turn in range(max((len(trajectory.turns) for _, trajectory in rollouts), default=0)):
        counted = _counted_until(rollouts, turn)
        most = max(map(len, counted.values()), default=0)
        for k in sorted({*(1 << power for power in range(most.bit_length())), most}):
            of = {name: found for name, found in counted.items() if len(found) >= k > 0}
            if of:
                rows.append({"turns": turn + 1, "rollouts": k, **_best_row(of, k, turn)})
    return rows


def _best_row(
    of: Mapping[str, Sequence[tuple[Speed, Trajectory]]], k: int, turn: int
) -> dict[str, Any]:
    def best(value: Callable[[Speed], float]) -> list[float]:
        return [best_of([value(speed) for speed, _ in found], k) for found in of.values()]

    def spent(cost: Callable[[Turn], int]) -> float:
        means = [
            _mean([sum(map(cost, trajectory.turns[: turn + 1])) for _, trajectory in found])
            for found in of.values()
        ]
        return k * _mean(means)

    is_known = not any(_is_untimed(speed) for found in of.values() for speed, _ in found)
    fast = {
        f"fast_{name}": _interval(estimate_mean(best(lambda s, p=p: float((s.speedup or 0.0) > p))))
        for name, p in (("1", 1.0), ("1_2", 1.2))
    }
    logs = best(lambda speed: math.log(max(FLOOR, speed.speedup or 0.0)))
    speeds = {name: [math.exp(value)] for name, value in zip(of, logs, strict=True)}
    unknown = dict.fromkeys((*fast, "speedup"))
    return {
        "answers": spent(lambda turn: 1),
        "tokens": spent(lambda turn: turn.completion.num_tokens),
        "solved": _interval(estimate_mean(best(lambda speed: float(speed.is_correct)))),
        **({**fast, "speedup": _interval(_geometric_mean(speeds))} if is_known else unknown),
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
    """The best answer up to a turn of each rollout that counts."""
    counted = _counted_until(rollouts, number)
    return {name: [best for best, _ in found] for name, found in counted.items()}


def _counted_until(
    rollouts: Iterable[Rollout], number: int
) -> dict[str, list[tuple[Speed, Trajectory]]]:
    """The rollouts that count, each with its best answer up to a turn: all without those that a
    fault ended before a correct answer."""
    found: dict[str, list[tuple[Speed, Trajectory]]] = defaultdict(list)
    for problem_id, trajectory in rollouts:
        seen = [_speed(turn.verdict) for turn in trajectory.turns[: number + 1]]
        best = max(seen, key=_rank, default=WRONG)
        if best.is_correct or not _is_cut(trajectory, number):
            found[problem_id].append((best, trajectory))
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
