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
from typing import Any, TypeVar

from forge import records

Rollouts = Sequence[tuple[str, records.Trajectory]]
Answer = records.Verdict | None
"""None for a prompt that did not fit, which is wrong."""
Answers = Mapping[str, Sequence[Answer]]
"""Answers by problem; no problem is without one."""
Value = TypeVar("Value")


def evaluate_groups(
    groups: Sequence[records.Group],
    problems: Iterable[records.Problem],
    *,
    stage: str,
    step: int,
    version: int,
    max_turns: int,
    at: float,
) -> records.Evaluation:
    """Computes an evaluation; pass@1 counts sampled first turns, greedy rollouts are separate.

    If no turn was judged, the rates are 0 with the interval 0..1.

    Args:
        groups: evaluation groups of one policy. Their order has no effect: the same answers give
            the same intervals.
        problems: all problems of the groups, or more.
        stage: name of the evaluation, such as `eval-0` or `grpo-3@5`.
        at: Unix time in seconds.
    """
    by_id = {problem.problem_id: problem for problem in problems}
    sampled: list[tuple[str, records.Trajectory]] = []
    greedy: list[tuple[str, records.Trajectory]] = []
    for group in sorted(groups, key=lambda each: (each.problem_id, each.group_id)):
        into = greedy if group.is_greedy else sampled
        into.extend((group.problem_id, trajectory) for trajectory in group.trajectories)
    first, first_greedy = _in_turn(sampled, 0), _in_turn(greedy, 0)
    tallies = {
        name: Tally(num=len(of), correct=sum(map(_is_correct, of))) for name, of in first.items()
    }
    at_k = _pass_at_ks(tallies)
    once, compiled = at_k.get(1, UNKNOWN), _share(first, _is_compiled)
    multi = _solved_in_any_turn(sampled)
    return records.Evaluation(
        stage=stage,
        step=step,
        policy_version=version,
        at=at,
        num_problems=len({name for name, _ in sampled + greedy}),
        num_samples=max(Counter(name for name, _ in sampled).values(), default=0),
        max_turns=max_turns,
        pass_at_1=once.value,
        ci_low=once.low,
        ci_high=once.high,
        pass_at_k={k: estimate.value for k, estimate in at_k.items()},
        pass_at_1_greedy=_share(first_greedy, _is_correct).value if first_greedy else None,
        pass_at_1_multi=multi["value"],
        compile_rate=compiled.value,
        detail={
            **_by_source(first, [by_id[name] for name in dict.fromkeys(n for n, _ in sampled)]),
            "by_family": _parts(first, {name: each.family for name, each in by_id.items()}),
            "by_turn": _rates_by_turn(sampled),
            "pass_at_k_ci": {str(k): [each.low, each.high] for k, each in at_k.items()},
            "multi": multi,
            "compile_rate_ci": [compiled.low, compiled.high],
            "speed": measure_speed(sampled),
            "best_at": best_at(sampled),
            "tallies": {name: [tally.num, tally.correct] for name, tally in tallies.items()},
            **_counts(sampled + greedy, judged={*first, *first_greedy}),
        },
    )


def _counts(rollouts: Rollouts, *, judged: Collection[str]) -> dict[str, Any]:
    """Numbers of turns and problems that count or not; problems that could not be judged by
    reason."""
    turns = [turn for _, trajectory in rollouts for turn in trajectory.turns]
    reasons = {
        name: records.Reason.of(turn.verdict.reason) or turn.verdict.reason
        for name, trajectory in rollouts
        for turn in trajectory.turns[:1]
        if turn.verdict.status is records.Status.UNJUDGEABLE and name not in judged
    }
    return {
        "num_judged_problems": len(judged),
        "unjudgeable": dict(sorted(Counter(map(str, reasons.values())).items())),
        "num_turns": len(turns),
        "num_masked": sum(not turn.verdict.status.is_scored for turn in turns),
        "num_context_full": sum(t.end is records.End.CONTEXT_FULL for _, t in rollouts),
        "num_unfit_problems": len({name for name, t in rollouts if not t.turns}),
    }


def _is_correct(answer: Answer) -> bool:
    return answer is not None and answer.is_correct


def _is_compiled(answer: Answer) -> bool:
    return answer is not None and answer.is_compiled


def _timing(answer: Answer) -> records.Timing | None:
    return answer.timing if answer is not None and answer.is_correct else None


def _speedup(answer: Answer) -> float:
    """0 for a wrong answer, and for one without a time."""
    timing = _timing(answer)
    return 0.0 if timing is None else timing.speedup


def _are_timed(answers: Iterable[Answer]) -> bool:
    """True if every correct one has a time."""
    return not any(_is_correct(each) and _timing(each) is None for each in answers)


def _in_turn(rollouts: Rollouts, number: int) -> dict[str, list[Answer]]:
    """The judged answers of one turn; of the first one also prompts that did not fit."""
    found: dict[str, list[Answer]] = defaultdict(list)
    for name, trajectory in rollouts:
        if not trajectory.turns and number == 0:
            found[name].append(None)
        for turn in trajectory.turns[number : number + 1]:
            if turn.verdict.status.is_scored:
                found[name].append(turn.verdict)
    return found


def _counted_until(
    rollouts: Rollouts, number: int
) -> dict[str, list[tuple[Answer, records.Trajectory]]]:
    """The rollouts that count, each with its best answer up to a turn: all without those that a
    fault ended, in this turn or before, without a correct answer."""
    found: dict[str, list[tuple[Answer, records.Trajectory]]] = defaultdict(list)
    for name, trajectory in rollouts:
        seen: list[Answer] = [turn.verdict for turn in trajectory.turns[: number + 1]]
        best = max(seen, key=lambda each: (_is_correct(each), _speedup(each)), default=None)
        is_cut = trajectory.end.is_unscored and len(trajectory.turns) <= number + 1
        if _is_correct(best) or not is_cut:
            found[name].append((best, trajectory))
    return found


def _best_until(rollouts: Rollouts, number: int) -> Answers:
    """The best answer up to a turn of each rollout that counts."""
    counted = _counted_until(rollouts, number)
    return {name: [best for best, _ in found] for name, found in counted.items()}


def _num_turns(rollouts: Rollouts) -> int:
    return max((len(trajectory.turns) for _, trajectory in rollouts), default=0)


def _share(answers: Answers, claim: Callable[[Answer], bool]) -> Estimate:
    """Mean over problems of the share of answers for which the claim holds."""
    return _mean_by_problem({n: list(map(claim, of)) for n, of in answers.items()}) or UNKNOWN


def _mean_by_problem(values: Mapping[str, Sequence[float]]) -> Estimate | None:
    """Mean over problems of the mean of each problem's values, which are in 0..1."""
    return estimate_mean([_mean(of) for of in values.values()])


def _pass_at_ks(tallies: Mapping[str, Tally]) -> dict[int, Estimate]:
    """pass@k for each k up to the largest number of samples of a problem."""
    counts = list(tallies.values())
    ks = range(1, 1 + max((tally.num for tally in counts), default=0))
    return {k: found for k in ks if (found := estimate_pass_at_k(counts, k)) is not None}


def _by_source(answers: Answers, problems: Sequence[records.Problem]) -> dict[str, Any]:
    """Parts by source, and by level of each source. With one source levels have no other name, and
    there are no sources.

    Args:
        problems: sampled ones, judged or not.
    """
    sources = {problem.problem_id: problem.origin for problem in problems}
    if len(set(sources.values())) < 2:
        levels = {problem.problem_id: str(problem.level) for problem in problems}
        return {"by_source": {}, "by_level": _parts(answers, levels)}
    levels = {problem.problem_id: f"{problem.origin} {problem.level}" for problem in problems}
    return {
        "sources": sources,
        "by_source": _parts(answers, sources),
        "by_level": _parts(answers, levels),
    }


def _parts(answers: Answers, names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Rates by part; `names` has the part of each problem."""
    found: dict[str, dict[str, Sequence[Answer]]] = defaultdict(dict)
    for name, of in answers.items():
        found[names[name]][name] = of
    return {part: _part(found[part]) for part in sorted(found)}


def _part(answers: Answers) -> dict[str, Any]:
    correct = _share(answers, _is_correct)
    return {
        "num": sum(map(len, answers.values())),
        "num_problems": len(answers),
        "pass_at_1": correct.value,
        "ci_low": correct.low,
        "ci_high": correct.high,
        "compile_rate": _share(answers, _is_compiled).value,
    }


def _solved_in_any_turn(rollouts: Rollouts) -> dict[str, float]:
    """Share of rollouts with a correct turn, a mean over problems, with its interval.

    Rollouts that a fault cut short after wrong answers are left out of the mean, which favours
    early successes; the interval therefore reaches from none of them solved to all of them solved.
    """
    counted = _best_until(rollouts, _num_turns(rollouts))
    cut = [
        name
        for name, t in rollouts
        if t.end.is_unscored
        and t.turns[0].verdict.status.is_scored
        and not any(turn.verdict.is_correct for turn in t.turns)
    ]

    def solved(cut_short: bool | None = None) -> Estimate:
        found = {name: list(map(_is_correct, of)) for name, of in counted.items()}
        if cut_short is not None:
            for name in cut:
                found.setdefault(name, []).append(cut_short)
        return _mean_by_problem(dict(sorted(found.items()))) or UNKNOWN

    if not counted:
        return {"value": 0.0, "ci_low": 0.0, "ci_high": 1.0, "num_cut_short": 0}
    return {
        "value": solved().value,
        "ci_low": solved(False).low,
        "ci_high": solved(True).high,
        "num_cut_short": len(cut),
    }


def _rates_by_turn(rollouts: Rollouts) -> dict[str, dict[str, Any]]:
    """Rates of each turn: among rollouts that reached it, and the share of all solved by then."""
    whole = _counted_until(rollouts, _num_turns(rollouts)).values()
    counted = [("", trajectory) for found in whole for _, trajectory in found]
    out: dict[str, dict[str, Any]] = {}
    for number in range(_num_turns(counted)):
        judged = _in_turn([each for each in counted if each[1].turns], number).get("", [])
        solved = [
            any(turn.verdict.is_correct for turn in t.turns[: number + 1]) for _, t in counted
        ]
        out[str(number)] = {
            "num": len(judged),
            "pass_at_1": sum(map(_is_correct, judged)) / max(1, len(judged)),
            "compile_rate": sum(map(_is_compiled, judged)) / max(1, len(judged)),
            "solved_by_then": _mean(solved),
        }
    return out


NUM_RESAMPLES = 2000
"""The 2.5 % percentile then has 50 resamples below it; 64 problems take 10 ms."""
TAIL = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    num: int
    correct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over problems, of a figure or of differences b − a, with its 95 % interval."""

    value: float
    low: float
    high: float
    num_problems: int

    @property
    def is_clear(self) -> bool:
        """True if the interval excludes 0."""
        return self.low > 0 or self.high < 0


UNKNOWN = Estimate(value=0.0, low=0.0, high=1.0, num_problems=0)


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


def estimate_pass_at_k(tallies: Sequence[Tally], k: int) -> Estimate | None:
    """Mean pass@k of the problems with at least k samples; None if there are none."""
    return estimate_mean([pass_at_k(t, k) for t in tallies if t.num >= k])


def estimate_mean(values: Sequence[float]) -> Estimate | None:
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
    return _estimate(values, span=(0.0, 1.0))


def compare_paired(
    a: Mapping[str, Tally], b: Mapping[str, Tally], *, k: int = 1
) -> Estimate | None:
    """Difference of pass@k, paired by problem, which removes what makes a problem hard for both;
    None if no problem has k samples in both. `a` and `b`: tallies by problem_id."""
    both = [name for name in sorted(a.keys() & b.keys()) if min(a[name].num, b[name].num) >= k]
    if not both:
        return None
    values = [pass_at_k(b[name], k) - pass_at_k(a[name], k) for name in both]
    return _estimate(values, span=(-1.0, 1.0))


def estimate_difference(values: Sequence[float]) -> Estimate | None:
    """Mean of one unbounded difference per problem, with its interval; None for fewer than two
    problems: one says nothing about the others."""
    if len(values) < 2:
        return None
    return _estimate(values, span=(-math.inf, math.inf))


def _estimate(values: Sequence[float], *, span: tuple[float, float]) -> Estimate:
    """The mean, and interpolated percentiles of the means of resampled problems.

    Args:
        span: all possible values; the interval of a single problem.
    """
    num = len(values)
    low, high = span
    if num > 1:
        means = sorted(math.fsum(draw(values)) / num for draw in _resamples(num))
        low, high = _quantile(means, TAIL), _quantile(means, 1.0 - TAIL)
    return Estimate(value=math.fsum(values) / num, low=low, high=high, num_problems=num)


@lru_cache(maxsize=8)
def _resamples(num: int) -> tuple[Callable[[Sequence[float]], tuple[float, ...]], ...]:
    """Draws of `num` problems with replacement, NUM_RESAMPLES times.

    All figures of an evaluation share them, which is 4 times faster.
    """
    rng = random.Random(0)
    return tuple(itemgetter(*rng.choices(range(num), k=num)) for _ in range(NUM_RESAMPLES))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
FLOOR = 0.1
"""Speed-up that counts for an answer without a correct kernel, and for a slower one, in the
geometric mean over all answers. A mean without a floor would be 0."""


def measure_speed(rollouts: Rollouts) -> dict[str, Any]:
    """Figures of speed of sampled rollouts, as JSON.

    Returns:
        `floor`; `by_turn`: turn to the figures of the answers in that turn, among the rollouts that
        reached it; `best_by_turn`: turn to the figures of the best answers up to it, of all
        rollouts. Figures are those of `_figures`.
    """
    turns = range(max(_num_turns(rollouts), 1))
    return {
        "floor": FLOOR,
        "by_turn": {str(n): _figures(_in_turn(rollouts, n)) for n in turns},
        "best_by_turn": {str(n): _figures(_best_until(rollouts, n)) for n in turns},
    }


def best_at(rollouts: Rollouts) -> list[dict[str, Any]]:
    """best@N of sampled rollouts, as JSON: a row for each number of turns and each number of
    rollouts (1, 2, 4, ... and all), over the problems that have so many.

    Returns:
        `turns`, `rollouts`; means of `answers` and `tokens` that they take on a problem; `solved`,
        `fast_1`, `fast_1_2` and `speedup` as [value, low, high]. speedup is the geometric mean
        with the floor. Figures of speed are None where a correct kernel has no time.
    """
    rows: list[dict[str, Any]] = []
    for turn in range(_num_turns(rollouts)):
        counted = _counted_until(rollouts, turn)
        most = max(map(len, counted.values()), default=0)
        for k in sorted({*(1 << power for power in range(most.bit_length())), most}):
            of = {name: found for name, found in counted.items() if len(found) >= k > 0}
            if of:
                rows.append({"turns": turn + 1, "rollouts": k, **_best_row(of, k, turn)})
    return rows


def _best_row(
    of: Mapping[str, Sequence[tuple[Answer, records.Trajectory]]], k: int, turn: int
) -> dict[str, Any]:
    def best(value: Callable[[Answer], float]) -> list[float]:
        return [best_of([value(answer) for answer, _ in found], k) for found in of.values()]

    def spent(cost: Callable[[records.Turn], int]) -> float:
        means = [
            _mean([sum(map(cost, trajectory.turns[: turn + 1])) for _, trajectory in found])
            for found in of.values()
        ]
        return k * _mean(means)

    row: dict[str, Any] = {
        "answers": spent(lambda turn: 1),
        "tokens": spent(lambda turn: turn.completion.num_tokens),
        "solved": _interval(estimate_mean(best(_is_correct))),
        **dict.fromkeys(("fast_1", "fast_1_2", "speedup")),
    }
    if _are_timed(answer for found in of.values() for answer, _ in found):
        logs = best(lambda answer: math.log(max(FLOOR, _speedup(answer))))
        row["fast_1"] = _interval(estimate_mean(best(lambda answer: _speedup(answer) > 1.0)))
        row["fast_1_2"] = _interval(estimate_mean(best(lambda answer: _speedup(answer) > 1.2)))
        row["speedup"] = _interval(_exponential(logs))
    return row


def _figures(answers: Answers) -> dict[str, Any]:
    """Numbers of answers and problems; `fast_p` by p, `geomean_correct`, `geomean_all` and
    `roofline` as [value, low, high], None where nothing is known; the numbers of kernels and
    problems in `geomean_correct`."""
    every = [each for of in answers.values() for each in of]
    timed = _values(answers, lambda each: _speedup(each) or None)
    floored = {name: [max(FLOOR, _speedup(each)) for each in of] for name, of in answers.items()}
    is_known = _are_timed(every)
    return {
        "num": len(every),
        "num_problems": len(answers),
        "num_correct": sum(map(_is_correct, every)),
        "num_timed": sum(map(len, timed.values())),
        "num_timed_problems": len(timed),
        "fast_p": {
            f"{p:g}": _interval(_fast_p(answers, p)) if is_known or not p else None
            for p in THRESHOLDS
        },
        "geomean_correct": _interval(_geometric_mean(timed)) if timed else None,
        "geomean_all": _interval(_geometric_mean(floored)) if timed and is_known else None,
        "roofline": _interval(_mean_by_problem(_values(answers, _roofline))),
    }


def _values(answers: Answers, value: Callable[[Answer], float | None]) -> dict[str, list[float]]:
    """Known values of the answers by problem, without problems that have none."""
    found = {
        name: [known for each in of if (known := value(each)) is not None]
        for name, of in answers.items()
    }
    return {name: known for name, known in found.items() if known}


def _roofline(answer: Answer) -> float | None:
    timing = _timing(answer)
    return None if timing is None else timing.roofline_share


def _fast_p(answers: Answers, p: float) -> Estimate | None:
    """None if there are no answers."""
    fast = {name: [_speedup(each) > p for each in of] for name, of in answers.items()}
    correct = {name: list(map(_is_correct, of)) for name, of in answers.items()}
    return _mean_by_problem(fast if p else correct)


def _geometric_mean(speedups: Mapping[str, Sequence[float]]) -> Estimate:
    """exp of the mean over problems of the mean logarithm; unbounded for a single problem."""
    return _exponential([_mean([math.log(each) for each in of]) for of in speedups.values()])


def _exponential(logs: Sequence[float]) -> Estimate:
    found = estimate_difference(logs)
    if found is None:
        return Estimate(value=math.exp(logs[0]), low=0.0, high=math.inf, num_problems=1)
    value, low, high = (math.exp(each) for each in (found.value, found.low, found.high))
    return Estimate(value=value, low=low, high=high, num_problems=len(logs))


def _interval(estimate: Estimate | None) -> list[float | None] | None:
    """Value and interval; an open end is None."""
    if estimate is None:
        return None
    return [estimate.value, estimate.low, estimate.high if estimate.high < math.inf else None]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
