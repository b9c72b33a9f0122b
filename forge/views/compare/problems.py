"""Problems that one run solves and the other does not, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.statistics.passk import Estimate, Tally, compare_paired, estimate_difference
from forge.views.compare.records import By, ProblemChange, Score, ScorePart
from forge.views.outcome.gains import FIRST_ANSWERS

if TYPE_CHECKING:
    from forge.store.reader import RunReader
    from forge.views.compare.curves import TrainedSteps

Z = 1.959964
"""Quantile of the normal distribution for 95 %."""

_EVALUATIONS = """
SELECT stage, stage_index, step, at, num_problems FROM v_evaluations WHERE stage_index IS NOT NULL
ORDER BY at
"""
_ANSWERS = f"""
SELECT g.problem_id, p.family, p.level, t.sha256 AS source, v.device, count(*) AS num,
    sum(v.status = 'correct') AS correct,
    max(CASE WHEN v.status = 'correct' THEN v.speedup END) AS speedup
{FIRST_ANSWERS} GROUP BY g.problem_id, v.device
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Results of an evaluation's first turns on one problem, by judging device."""

    family: str
    level: int
    source: bytes | None
    tallies: Mapping[str, Tally]
    speedups: Mapping[str, float]

    @property
    def tally(self) -> Tally:
        """Counts over all devices."""
        found = self.tallies.values()
        return Tally(num=sum(t.num for t in found), correct=sum(t.correct for t in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The evaluation of a run that is compared."""

    name: str
    spent: float | None
    answers: Mapping[str, Answers]

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of its judges."""
        return tuple(sorted({name for each in self.answers.values() for name in each.tallies}))


def choose_evaluation(
    reader: RunReader, steps: TrainedSteps, *, by: By, budget: float | None
) -> Chosen | None:
    """The latest evaluation within the budget; the last one if costs are unknown."""
    chosen: Chosen | None = None
    for row in reader.rows(_EVALUATIONS):
        spent = steps.at((row["stage_index"], row["step"]), by)
        if spent is not None and budget is not None and spent > budget * (1 + 1e-9):
            continue
        name = f"{row['stage']} at step {row['step']}"
        answers = _load_answers(reader, stage=row["stage_index"], step=row["step"])
        if answers:
            chosen = Chosen(name=name, spent=spent, answers=answers)
    return chosen


def _load_answers(reader: RunReader, *, stage: int, step: int) -> dict[str, Answers]:
    found: dict[str, list[dict]] = {}
    for row in reader.rows(_ANSWERS, {"stage": stage, "step": step}):
        found.setdefault(row["problem_id"], []).append(row)
    return {
        name: Answers(
            family=rows[0]["family"] or "",
            level=rows[0]["level"] or 0,
            source=rows[0]["source"],
            tallies={
                row["device"] or "": Tally(num=row["num"], correct=row["correct"] or 0)
                for row in rows
            },
            speedups={
                row["device"] or "": row["speedup"] for row in rows if row["speedup"] is not None
            },
        )
        for name, rows in found.items()
    }


def compare_problems(
    a: Mapping[str, Answers], b: Mapping[str, Answers]
) -> tuple[ProblemChange, ...]:
    """Problems of both, largest loss first."""
    out = [_change(name, a[name], b[name]) for name in a.keys() & b.keys()]
    return tuple(sorted(out, key=lambda each: (each.difference, each.problem_id)))


def score(a: Mapping[str, Tally], b: Mapping[str, Tally]) -> Score | None:
    """pass@1 of both on their common problems; None if there are none with samples."""
    difference = compare_paired(a, b)
    if difference is None:
        return None
    both = [name for name in a.keys() & b.keys() if a[name].num and b[name].num]
    rates = [(a[n].correct / a[n].num, b[n].correct / b[n].num) for n in both]
    return Score(
        a=math.fsum(left for left, _ in rates) / len(rates),
        b=math.fsum(right for _, right in rates) / len(rates),
        difference=difference,
        num_won=sum(right > left for left, right in rates),
        num_lost=sum(right < left for left, right in rates),
        num_even=sum(right == left for left, right in rates),
    )


def tallies(answers: Mapping[str, Answers]) -> dict[str, Tally]:
    """Counts by problem."""
    return {name: each.tally for name, each in answers.items()}


def parts_by_level(a: Mapping[str, Answers], b: Mapping[str, Answers]) -> tuple[ScorePart, ...]:
    """Scores by level."""
    levels = sorted({a[name].level for name in a.keys() & b.keys()})
    out = []
    for level in levels:
        of_a = {name: each for name, each in a.items() if each.level == level}
        of_b = {name: each for name, each in b.items() if each.level == level}
        out.append(_part(f"level {level}", tallies(of_a), tallies(of_b), _ratios(of_a, of_b)))
    return tuple(part for part in out if part is not None)


def parts_by_device(a: Mapping[str, Answers], b: Mapping[str, Answers]) -> tuple[ScorePart, ...]:
    """Scores by device that judged answers of both: times of different cards are not comparable."""
    devices = sorted(
        {device for each in a.values() for device in each.tallies}
        & {device for each in b.values() for device in each.tallies}
    )
    out = []
    for device in devices:
        of_a = {n: each.tallies[device] for n, each in a.items() if device in each.tallies}
        of_b = {n: each.tallies[device] for n, each in b.items() if device in each.tallies}
        out.append(_part(device or "unknown", of_a, of_b, _ratios(a, b, device=device)))
    return tuple(part for part in out if part is not None)


def _part(
    name: str, a: Mapping[str, Tally], b: Mapping[str, Tally], ratios: Sequence[float]
) -> ScorePart | None:
    if (found := score(a, b)) is None:
        return None
    return ScorePart(name=name, score=found, speed=estimate_difference(ratios))


def _ratios(
    a: Mapping[str, Answers], b: Mapping[str, Answers], *, device: str | None = None
) -> list[float]:
    """log2 of b's best speedup over a's, for problems that both have timed on one device."""
    out = []
    for name in sorted(a.keys() & b.keys()):
        common = a[name].speedups.keys() & b[name].speedups.keys()
        wanted = common if device is None else common & {device}
        both = [(a[name].speedups[each], b[name].speedups[each]) for each in wanted]
        if both and min(min(pair) for pair in both) > 0:
            best_a, best_b = (max(values) for values in zip(*both, strict=True))
            out.append(math.log2(best_b / best_a))
    return out


def _change(name: str, a: Answers, b: Answers) -> ProblemChange:
    left, right = a.tally, b.tally
    found = difference_of_shares(left, right)
    return ProblemChange(
        problem_id=name,
        family=b.family,
        level=b.level,
        num_a=left.num,
        correct_a=left.correct,
        num_b=right.num,
        correct_b=right.correct,
        difference=found.value,
        low=found.low,
        high=found.high,
        speedup_a=max(a.speedups.values(), default=None),
        speedup_b=max(b.speedups.values(), default=None),
    )


def difference_of_shares(a: Tally, b: Tally) -> Estimate:
    """b's share minus a's with Newcombe's interval (1998, method 10), which combines Wilson's
    bounds of each. Valid for few samples, unlike the normal approximation.
    """
    share_a, low_a, high_a = _wilson(a)
    share_b, low_b, high_b = _wilson(b)
    value = share_b - share_a
    low = value - math.hypot(share_b - low_b, high_a - share_a)
    high = value + math.hypot(high_b - share_b, share_a - low_a)
    return Estimate(value=value, low=low, high=high, num_problems=1)


def _wilson(tally: Tally) -> tuple[float, float, float]:
    """(share, low, high)."""
    n, share = tally.num, tally.correct / tally.num
    middle = share + Z * Z / (2 * n)
    half = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    scale = 1 + Z * Z / n
    return share, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
