"""Compares two runs: learning curves over the same steps, tokens or seconds, and problems that one
run solves and the other does not, with intervals. `compare` reads both runs once each.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.views.compare.comparison import (
    WINDOW,
    By,
    Comparison,
    CurvePair,
    CurvePoint,
    ProblemChange,
    Score,
    ScorePart,
    Side,
)
from forge.views.compare.settings import find_changes
from forge.views.gains import FIRST_ANSWERS
from forge.views.run_state import run_state, trained_label
from forge.views.statistics import Tally, compare_paired, estimate_difference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forge.store.reader import RunReader

UNIT = {By.STEP: "steps", By.TOKENS: "tokens", By.TIME: "seconds"}
INSTEAD = "no curves; the last evaluations are compared"


def compare(a: RunReader, b: RunReader, *, by: By = By.STEP) -> Comparison:
    """Compares two runs at equal steps, tokens or time."""
    of_rollouts = has_rollouts(a) or has_rollouts(b)
    left = load_trained_steps(a, of_rollouts=of_rollouts)
    right = load_trained_steps(b, of_rollouts=of_rollouts)
    notes: list[str] = []
    kind = "step of grpo" if of_rollouts else "step"
    names = (a.paths.name, b.paths.name)
    budget = _budget(left, right, by, kind=kind, names=names, notes=notes)
    curves = compare_curves(left, right, by=by, budget=budget) if budget else ()
    chosen_a = choose_evaluation(a, left, by=by, budget=budget)
    chosen_b = choose_evaluation(b, right, by=by, budget=budget)
    answers_a, answers_b = _common(a, b, chosen_a, chosen_b, by=by, budget=budget, notes=notes)
    return Comparison(
        by=by,
        budget=budget,
        a=_side(a, left, chosen_a, by=by),
        b=_side(b, right, chosen_b, by=by),
        config=find_changes(a, b),
        curves=curves,
        score=score(tallies(answers_a), tallies(answers_b)),
        problems=compare_problems(answers_a, answers_b),
        by_source=parts_by_source(answers_a, answers_b),
        by_level=parts_by_level(answers_a, answers_b),
        by_device=parts_by_device(answers_a, answers_b),
        notes=tuple(notes),
    )


def _side(reader: RunReader, steps: TrainedSteps, chosen: Chosen | None, *, by: By) -> Side:
    return Side(
        name=reader.paths.name,
        state=run_state(reader),
        spent=steps.total(by),
        devices=chosen.devices if chosen else (),
        evaluation=None if chosen is None else chosen.name,
    )


def _budget(
    a: TrainedSteps, b: TrainedSteps, by: By, *, kind: str, names: tuple[str, str], notes: list[str]
) -> float | None:
    """Common budget; None if a run has no steps or did not count the quantity."""
    for name, steps in zip(names, (a, b), strict=True):
        if not steps.places:
            notes.append(f"{name} has trained no {kind}: {INSTEAD}")
        elif steps.total(by) is None:
            notes.append(f"{name} did not count its {UNIT[by]}: {INSTEAD}")
    known = [spent for each in (a, b) if each.places and (spent := each.total(by)) is not None]
    return min(known) if len(known) == 2 else None


def _common(
    a: RunReader,
    b: RunReader,
    chosen_a: Chosen | None,
    chosen_b: Chosen | None,
    *,
    by: By,
    budget: float | None,
    notes: list[str],
) -> tuple[dict[str, Answers], dict[str, Answers]]:
    """Answers to the problems that are the same in both, by name and source."""
    for reader, chosen in ((a, chosen_a), (b, chosen_b)):
        if chosen is None:
            when = "" if budget is None else f" after at most {budget:,.0f} {UNIT[by]}"
            notes.append(f"{reader.paths.name} has no evaluation{when}: no problems won or lost")
    if chosen_a is None or chosen_b is None:
        return {}, {}
    found_a, found_b = chosen_a.answers, chosen_b.answers
    both = found_a.keys() & found_b.keys()
    same = {name for name in both if found_a[name].source == found_b[name].source}
    if not both:
        notes.append(
            f"no problem in common: {a.paths.name} evaluated {_some(found_a)}, "
            f"{b.paths.name} {_some(found_b)}"
        )
    elif len(same) < len(both):
        notes.append(
            f"{len(both) - len(same)} problems share a name but not their source: left out"
        )
    if same and len(same) < max(len(found_a), len(found_b)):
        notes.append(
            f"{len(same)} problems in common, of {len(found_a)} and {len(found_b)} evaluated"
        )
    return {n: found_a[n] for n in same}, {n: found_b[n] for n in same}


def _some(answers: Mapping[str, Answers]) -> str:
    names = sorted(answers)
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


STEP_COLUMNS = (
    "reward", "pass_rate", "pass_rate_multi", "compile_rate", "speedup", "best_speedup",
    "completion_tokens", "truncated_share",
)  # fmt: skip
METRICS = ("train/loss/mean", "train/entropy/mean", "train/kl_behaviour/mean")
SHARES = (0.25, 0.5, 0.75, 1.0)
"""Points of comparison, as shares of the common budget."""

_STEPS = (
    f"SELECT stage, step, is_open, num_completion_tokens, {', '.join(STEP_COLUMNS)} FROM v_steps"
)
_METRICS = "SELECT stage, step, key, value, at, attempt FROM v_metrics WHERE key IN ({})"
_WALL = "step/wall/seconds"

StageStep = tuple[int, int]
"""(stage, step)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSteps:
    """Trained steps of one run, in order, with the cumulative cost of each."""

    places: tuple[StageStep, ...]
    spent: dict[By, tuple[float | None, ...]]
    """Cumulative cost of each place; None if it was not counted."""
    values: dict[str, dict[StageStep, float]]

    def at(self, place: StageStep, by: By) -> float | None:
        """Cost up to and including this stage and step; 0 before the first."""
        index = bisect_right(self.places, place)
        return 0.0 if index == 0 else self.spent[by][index - 1]

    def total(self, by: By) -> float | None:
        """Cost of all steps; None if it was not counted."""
        return self.spent[by][-1] if self.places else 0.0

    def curve(self, name: str, by: By) -> tuple[tuple[float, float], ...]:
        """(cost, value) of each step that has both."""
        values = self.values.get(name, {})
        return tuple(
            (x, values[place])
            for place, x in zip(self.places, self.spent[by], strict=True)
            if x is not None and place in values
        )


def has_rollouts(reader: RunReader) -> bool:
    """True if the run trained on rollouts, or intends to."""
    found = reader.value("SELECT 1 FROM groups WHERE purpose = 'train' LIMIT 1")
    return found is not None


def load_trained_steps(reader: RunReader, *, of_rollouts: bool) -> TrainedSteps:
    """The steps trained on rollouts, or those of SFT."""
    played = {(row["stage"], row["step"]): row for row in reader.rows(_STEPS)}
    keys = (*METRICS, _WALL)
    rows = reader.rows(_METRICS.format(", ".join("?" * len(keys))), keys)
    stages = {stage for stage, _ in played}
    values: dict[str, dict[StageStep, float]] = defaultdict(dict)
    marks: dict[StageStep, tuple[int, float]] = {}
    for row in rows:
        place = (row["stage"], row["step"])
        if (row["stage"] in stages) != of_rollouts:
            continue
        if row["value"] is not None:
            values[row["key"]][place] = row["value"]
        if row["key"].startswith("train/"):
            marks[place] = (row["attempt"], row["at"])
    places = tuple(sorted(marks))
    for name in STEP_COLUMNS:
        found = {p: played[p][name] for p in places if p in played and not played[p]["is_open"]}
        values[name] = {p: value for p, value in found.items() if value is not None}
    walls = values.pop(_WALL, {}) if of_rollouts else {}  # SFT has one for the whole stage
    spent = {
        By.STEP: _count_steps(places),
        By.TOKENS: _add_up([played.get(p, {}).get("num_completion_tokens") for p in places]),
        By.TIME: _add_up(_seconds(places, walls, marks)),
    }
    return TrainedSteps(places=places, spent=spent, values=dict(values))


def compare_curves(
    a: TrainedSteps, b: TrainedSteps, *, by: By, budget: float
) -> tuple[CurvePair, ...]:
    """Curves of every metric that both runs have."""
    out: list[CurvePair] = []
    for name in (*STEP_COLUMNS, *METRICS):
        left, right = a.curve(name, by), b.curve(name, by)
        if not left or not right:
            continue
        xs = [share * budget for share in SHARES]
        points = tuple(CurvePoint(x=x, a=_mean_at(left, x), b=_mean_at(right, x)) for x in xs)
        out.append(CurvePair(name=name, a=left, b=right, at=points))
    return tuple(out)


def _mean_at(curve: tuple[tuple[float, float], ...], x: float) -> float | None:
    end = bisect_right([point[0] for point in curve], x * (1 + 1e-9))
    last = [value for _, value in curve[max(0, end - WINDOW) : end]]
    return sum(last) / len(last) if last else None


def _count_steps(places: tuple[StageStep, ...]) -> tuple[float, ...]:
    """Step numbers, continued over stages."""
    out: list[float] = []
    before, base = None, 0.0
    for stage, step in places:
        if before is not None and stage != before:
            base = out[-1]
        before = stage
        out.append(base + step)
    return tuple(out)


def _add_up(costs: list[float | None]) -> tuple[float | None, ...]:
    """Cumulative sums; None from the first step with an unknown cost."""
    out: list[float | None] = []
    total: float | None = 0.0
    for cost in costs:
        total = None if total is None or cost is None else total + cost
        out.append(total)
    return tuple(out)


def _seconds(
    places: tuple[StageStep, ...],
    walls: dict[StageStep, float],
    marks: dict[StageStep, tuple[int, float]],
) -> list[float | None]:
    """Seconds of each step, as measured; otherwise since the previous step of the same stage and
    attempt.
    """
    out: list[float | None] = []
    for index, place in enumerate(places):
        known = walls.get(place)
        previous = places[index - 1] if index else None
        if known is None and previous is not None and previous[0] == place[0]:
            is_same = marks[previous][0] == marks[place][0]
            known = max(0.0, marks[place][1] - marks[previous][1]) if is_same else 0.0
        out.append(0.0 if known is None else known)
    return out


_EVALUATIONS = """
SELECT stage, stage_index, step, at, num_problems, num_trained_problems, num_shared_problems,
    json_extract(detail, '$.sources') AS sources
FROM v_evaluations WHERE stage_index IS NOT NULL ORDER BY at
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
    origin: str
    """Name of its source; empty if the run has one."""
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
        name = ", ".join(filter(None, (name, trained_label(row))))
        sources = json.loads(row["sources"] or "{}")
        answers = _load_answers(reader, sources, stage=row["stage_index"], step=row["step"])
        if answers:
            chosen = Chosen(name=name, answers=answers)
    return chosen


def _load_answers(
    reader: RunReader, sources: Mapping[str, str], *, stage: int, step: int
) -> dict[str, Answers]:
    found: dict[str, list[dict]] = {}
    for row in reader.rows(_ANSWERS, {"stage": stage, "step": step}):
        found.setdefault(row["problem_id"], []).append(row)
    return {
        name: Answers(
            family=rows[0]["family"] or "",
            level=rows[0]["level"] or 0,
            origin=sources.get(name, ""),
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


def parts_by_source(a: Mapping[str, Answers], b: Mapping[str, Answers]) -> tuple[ScorePart, ...]:
    """Scores by source; none if there is one."""
    if len(_origins(a, b)) < 2:
        return ()
    return _parts_by(a, b, lambda each: (each.origin, 0), lambda origin, _: origin)


def parts_by_level(a: Mapping[str, Answers], b: Mapping[str, Answers]) -> tuple[ScorePart, ...]:
    """Scores by level, of each source if there are several."""
    has_several = len(_origins(a, b)) > 1
    return _parts_by(
        a, b, lambda each: (each.origin if has_several else "", each.level),
        lambda origin, level: f"{origin} level {level}".strip(),
    )  # fmt: skip


def _origins(a: Mapping[str, Answers], b: Mapping[str, Answers]) -> set[str]:
    return {a[name].origin for name in a.keys() & b.keys()}


def _parts_by(
    a: Mapping[str, Answers], b: Mapping[str, Answers],
    key: Callable[[Answers], tuple[str, int]], named: Callable[[str, int], str],
) -> tuple[ScorePart, ...]:  # fmt: skip
    """Scores of the problems whose answers in `a` have the same key."""
    both = {name: key(a[name]) for name in a.keys() & b.keys()}
    out = []
    for part in sorted(set(both.values())):
        of_a = {name: a[name] for name, of in both.items() if of == part}
        of_b = {name: b[name] for name in of_a}
        out.append(_part(named(*part), tallies(of_a), tallies(of_b), _ratios(of_a, of_b)))
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
    return ProblemChange(
        problem_id=name,
        family=b.family,
        level=b.level,
        num_a=left.num,
        correct_a=left.correct,
        num_b=right.num,
        correct_b=right.correct,
        difference=right.correct / right.num - left.correct / left.num,
        speedup_a=max(a.speedups.values(), default=None),
        speedup_b=max(b.speedups.values(), default=None),
    )
