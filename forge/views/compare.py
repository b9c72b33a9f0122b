"""Compares two runs: settings, learning curves over the same steps, tokens or seconds, problems won
and lost, with intervals.

`compare(a, b, by=By.STEP)` gives a `Comparison`, data only; `render_comparison` prints it. Called
by `forge compare A B`, the monitor and notebooks. What cannot be compared is a line in
`Comparison.notes`: never an error, and never a number with another meaning. All differences are b
minus a.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any

from rich.console import Group as RichGroup
from rich.text import Text

from forge.store.reader import RunReader
from forge.views.gains import FIRST_ANSWERS
from forge.views.run_state import load_experiment, run_state, words_of
from forge.views.statistics import Estimate, Tally, compare_paired, estimate_difference
from forge.views.text.numbers import NONE, digits, percent, without_empty
from forge.views.text.secrets import HIDDEN, is_secret
from forge.views.text.terminal import printable


class By(StrEnum):
    """Quantity that both runs get the same amount of."""

    STEP = "step"
    """Training steps: of GRPO if either run has them, else of SFT."""
    TOKENS = "tokens"
    """Completion tokens generated for training."""
    TIME = "time"
    """Seconds of training steps, without evaluations and without the time between attempts."""


UNITS = {By.STEP: "steps", By.TOKENS: "tokens", By.TIME: "seconds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    name: str
    state: str
    spent: float | None
    """Total of the compared quantity; None if it was not counted."""
    devices: tuple[str, ...]
    """Judging devices of that evaluation: `cpu`, or a GPU's name."""
    evaluation: str | None
    """The evaluation whose problems are compared: `eval-4 at step 20`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    key: str
    """`rollout.group_size`; `stages`, and `stage.grpo.steps`, `stage.grpo[1].steps` for the second
    of a kind, `stage.grpo (round 2).steps`; `code.commit`, `versions.torch`, `machine.cores` for
    the code and machine of a run."""
    a: Any
    """None if a has no such key; the same for b."""
    b: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Both runs at the same x: means of the last steps up to it (WINDOW)."""

    x: float
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePair:
    """One metric of both runs over the compared quantity."""

    name: str
    """A column of v_steps, or a metric: `reward`, `train/kl_behaviour/mean`."""
    a: tuple[tuple[float, float], ...]
    """(x, value) of every step that has one."""
    b: tuple[tuple[float, float], ...]
    at: tuple[CurvePoint, ...]
    """At equal x; the last is the end of the shorter run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemChange:
    """First answers of both runs to one problem."""

    problem_id: str
    family: str
    level: int
    source: str
    """Name of its source; empty if the run has one."""
    num_a: int
    correct_a: int
    num_b: int
    correct_b: int
    difference: float
    """Difference of the shares of correct first turns."""
    outcome: str
    """`won` if b is better, `lost`, `even`."""
    speedup_a: float | None
    """Best of the evaluation's correct answers."""
    speedup_b: float | None
    speedup_ratio: float | None
    """b's best speedup over a's, if one device has timed both: times of different cards are not
    comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """pass@1 of both on the problems that both evaluated."""

    a: float
    b: float
    difference: Estimate
    """Paired by problem, with the 95 % interval of resampled problems."""
    num_won: int
    """Problems that b solves more often than a."""
    num_lost: int
    num_even: int

    @property
    def is_certain(self) -> bool:
        """True if the interval of the difference excludes 0."""
        return self.difference.low > 0 or self.difference.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePart:
    """The score of one source or level."""

    name: str
    score: Score
    speed: Estimate | None
    """log2 of `ProblemChange.speedup_ratio`: 1 is twice as fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of a comparison. A note explains each empty part."""

    by: By
    budget: float | None
    """Common amount of `by`: the smaller of the two totals."""
    a: Side
    b: Side
    config: tuple[Change, ...]
    curves: tuple[CurvePair, ...]
    score: Score | None
    problems: tuple[ProblemChange, ...]
    """Largest loss first, largest gain last."""
    by_source: tuple[ScorePart, ...]
    """Empty if all problems are of one source."""
    by_level: tuple[ScorePart, ...]
    notes: tuple[str, ...]
    """Parts that could not be compared, each with the reason."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


WINDOW = 5
"""Steps averaged: one step's reward comes from few problems."""
NUM_PROBLEMS = 10
"""Problems shown of each kind; --json has all."""
NUM_POINTS = 3
"""Points of comparison that fit beside each other."""
VALUE_CHARACTERS = 30


def render_comparison(found: Comparison) -> RichGroup:
    """Score first, then its reasons: settings, curves, problems, parts."""
    from forge.views.text.fitting import Fitting

    parts: list[Any] = [Text(printable(_head(found)), style="bold")]
    if found.score is not None:
        parts.append(Text(_sentence(found.score)))
    parts += [Text(printable(f"note: {note}"), style="yellow") for note in found.notes]
    for title, columns, rows in _tables(found):
        if rows:
            parts += [Text(""), Text(title, style="bold"), Fitting(columns, rows)]
    return RichGroup(*parts)


def _head(found: Comparison) -> str:
    sides = [
        f"{letter} {side.name} ({side.state}"
        + (f", {side.spent:,.0f} {UNITS[found.by]}" if side.spent is not None else "")
        + (f", {side.evaluation}" if side.evaluation else "")
        + ")"
        for letter, side in (("a", found.a), ("b", found.b))
    ]
    return "\n".join(sides)


def _sentence(score: Score) -> str:
    verdict = "beyond chance" if score.is_certain else "within chance"
    return (
        f"pass@1 {percent(score.a)} → {percent(score.b)}: {_points(score.difference.value)} points "
        f"({_between(score.difference)}, 95 %): {verdict}\n"
        f"{score.difference.num_problems} problems, paired: {score.num_won} won, "
        f"{score.num_lost} lost, {score.num_even} even"
    )


def _tables(found: Comparison) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[Any]]]]:
    """Title, columns and rows of each table."""
    settings = [(each.key, _value(each.a), _value(each.b)) for each in found.config]
    yield "settings that differ", ("key", "a", "b"), settings
    curves = [
        (
            curve.name.removeprefix("train/").removesuffix("/mean"),
            *(f"{digits(point.a)} → {digits(point.b)}" for point in curve.at[-NUM_POINTS:]),
        )
        for curve in found.curves
    ]
    points = found.curves[0].at[-NUM_POINTS:] if curves else ()
    heads = ("metric", *(f"{point.x:,.0f} {UNITS[found.by]}" for point in points))
    yield f"curves at equal {found.by}, means of the last {WINDOW} steps, a → b", heads, curves
    for title, parts in (("by source", found.by_source), ("by level", found.by_level)):
        heads = ("", "n", "a", "b", "b − a", "95 %", "won", "lost", "speed b/a")
        yield title, *without_empty(heads, [_part_cells(part) for part in parts])
    won = [each for each in reversed(found.problems) if each.outcome == "won"]
    lost = [each for each in found.problems if each.outcome == "lost"]
    for title, problems in (("won by b", won), ("lost by b", lost)):
        heads = ("problem", "level", "a", "b", "b − a", "speed-up a", "speed-up b")
        more = max(0, len(problems) - NUM_PROBLEMS)
        words = f"{title}: {len(problems)} problems" + (f", {more} not shown" if more else "")
        cells = [_problem_cells(each) for each in problems[:NUM_PROBLEMS]]
        yield words, *without_empty(heads, cells)


def _part_cells(part: ScorePart) -> tuple[Any, ...]:
    score, speed = part.score, NONE
    if part.speed is not None:
        value, low, high = (2.0**x for x in (part.speed.value, part.speed.low, part.speed.high))
        speed = f"{value:.2f}× ({low:.2f}–{high:.2f})"
    return (
        part.name, score.difference.num_problems, percent(score.a), percent(score.b),
        _points(score.difference.value), _between(score.difference), score.num_won, score.num_lost,
        speed,
    )  # fmt: skip


def _problem_cells(each: ProblemChange) -> tuple[Any, ...]:
    return (
        each.problem_id, each.level, f"{each.correct_a}/{each.num_a}",
        f"{each.correct_b}/{each.num_b}", _points(each.difference), digits(each.speedup_a),
        digits(each.speedup_b),
    )  # fmt: skip


def _points(value: float) -> str:
    """`+12.5`: percentage points."""
    return f"{100 * value:+.1f}"


def _between(difference: Estimate) -> str:
    return f"{_points(difference.low)} to {_points(difference.high)}"


def _value(value: Any) -> str:
    text = NONE if value is None else str(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 1]}…"


ABSENT = object()

_MADE_WITH = """
SELECT code_commit, code_diff <> '' AS has_diff, seed, versions, machine FROM attempts
ORDER BY attempt DESC LIMIT 1
"""


def find_changes(a: RunReader, b: RunReader) -> tuple[Change, ...]:
    """Keys of the experiment, then of the last attempt's code and machine, where they differ. A
    stage that only one run has appears in `stages`, without its keys."""
    settings = [_settings(reader) for reader in (a, b)]
    left, right = settings
    stages = [{_stage_of(key) for key in each} for each in settings]
    return tuple(
        Change(key=key, a=_shown(key, left), b=_shown(key, right))
        for key in {**left, **right}
        if left.get(key, ABSENT) != right.get(key, ABSENT)
        and all(_stage_of(key) in each for each in stages)
    )


def _shown(key: str, settings: Mapping[str, Any]) -> Any:
    return HIDDEN if key in settings and is_secret(key) else settings.get(key)


def _stage_of(key: str) -> str:
    """`stage.grpo[1]` of `stage.grpo[1].steps`; empty for a key of no stage."""
    return ".".join(key.split(".")[:2]) if key.startswith("stage.") else ""


def _settings(reader: RunReader) -> dict[str, Any]:
    """The flat experiment, code and machine. Stages are named by kind and round, so that those of
    one kind and round are compared with each other."""
    tables = load_experiment(reader)
    stages = tables.pop("stage", [])
    settings = dict(_flat(tables))
    kinds: list[str] = []
    for stage in stages:
        number = stage.pop("round", None)
        kind = str(stage.get("kind")) + (f" (round {number})" if number else "")
        before = f"[{kinds.count(kind)}]" if kind in kinds else ""
        settings |= _flat(stage, place=f"stage.{kind}{before}.")
        kinds.append(kind)
    settings["stages"] = " → ".join(kinds)
    made = reader.one(_MADE_WITH)
    if made is not None:
        settings |= {"code.commit": made["code_commit"], "code.is_changed": bool(made["has_diff"])}
        for name in ("versions", "machine"):
            settings |= _flat(json.loads(made[name]), place=f"{name}.")
    return settings


def _flat(table: Mapping[str, Any], *, place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, place=f"{place}{key}.")
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            for index, one in enumerate(value):
                yield from _flat(one, place=f"{place}{key}[{index}].")
        else:
            yield f"{place}{key}", value


INSTEAD = "no curves; the last evaluations are compared"


def compare(a: RunReader, b: RunReader, *, by: By = By.STEP) -> Comparison:
    runs, notes = (a, b), list[str]()
    of_rollouts = any(_has_rollouts(reader) for reader in runs)
    trained = [_load_trained_steps(reader, by, of_rollouts=of_rollouts) for reader in runs]
    budget = _budget(runs, trained, by, of_rollouts=of_rollouts, notes=notes)
    chosen = [
        _choose_evaluation(reader, steps, budget)
        for reader, steps in zip(runs, trained, strict=True)
    ]
    problems = _common(runs, chosen, by=by, budget=budget, notes=notes)
    has_sources = len({each.source for each in problems}) > 1
    sides = [
        Side(
            name=reader.paths.name, state=run_state(reader), spent=steps.total, evaluation=name,
            devices=tuple(sorted({one for row in answers.values() for one in row["devices"]})),
        )
        for reader, steps, (name, answers) in zip(runs, trained, chosen, strict=True)
    ]  # fmt: skip
    return Comparison(
        by=by,
        budget=budget,
        a=sides[0],
        b=sides[1],
        config=find_changes(a, b),
        curves=_compare_curves(*trained, budget=budget) if budget else (),
        score=_score(problems),
        problems=tuple(problems),
        by_source=_parts_of(problems, lambda each: each.source) if has_sources else (),
        by_level=_parts_of(
            problems,
            lambda each: f"{each.source if has_sources else ''} level {each.level}".strip(),
        ),
        notes=tuple(notes),
    )


def _budget(
    runs: Sequence[RunReader], trained: Sequence[TrainedSteps], by: By, *,
    of_rollouts: bool, notes: list[str],
) -> float | None:  # fmt: skip
    """Common budget; None if a run has no steps or did not count the quantity."""
    known = list[float]()
    for reader, steps in zip(runs, trained, strict=True):
        if not steps.places:
            kind = "step of grpo" if of_rollouts else "step"
            notes.append(f"{reader.paths.name} has trained no {kind}: {INSTEAD}")
        elif steps.total is None:
            notes.append(f"{reader.paths.name} did not count its {UNITS[by]}: {INSTEAD}")
        else:
            known.append(steps.total)
    return min(known) if len(known) == 2 else None


def _common(
    runs: Sequence[RunReader], chosen: Sequence[tuple[str | None, Answers]], *,
    by: By, budget: float | None, notes: list[str],
) -> list[ProblemChange]:  # fmt: skip
    """Problems that are the same in both, by name and source, largest loss first."""
    names = [reader.paths.name for reader in runs]
    when = "" if budget is None else f" after at most {budget:,.0f} {UNITS[by]}"
    without = [name for name, (_, answers) in zip(names, chosen, strict=True) if not answers]
    notes += [f"{name} has no evaluation{when}: no problems won or lost" for name in without]
    if without:
        return []
    a, b = (answers for _, answers in chosen)
    both = sorted(a.keys() & b.keys())
    same = [name for name in both if a[name]["sha256"] == b[name]["sha256"]]
    if not both:
        named = f"{names[0]} evaluated {_some(a)}, {names[1]} {_some(b)}"
        notes.append(f"no problem in common: {named}")
    elif len(same) < len(both):
        number = len(both) - len(same)
        notes.append(f"{number} problems share a name but not their source: left out")
    if same and len(same) < max(len(a), len(b)):
        notes.append(f"{len(same)} problems in common, of {len(a)} and {len(b)} evaluated")
    changes = [_change(name, a[name], b[name]) for name in same]
    return sorted(changes, key=lambda each: (each.difference, each.problem_id))


def _some(answers: Answers) -> str:
    first, *others = sorted(answers)
    return f"{first} and {len(others)} more" if others else first


def _change(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> ProblemChange:
    difference = b["correct"] / b["num"] - a["correct"] / a["num"]
    is_timed = a["speedup"] and b["speedup"]
    is_one_device = len(a["devices"]) == 1 and a["devices"] == b["devices"]
    return ProblemChange(
        problem_id=name, family=b["family"], level=b["level"], source=a["source"],
        num_a=a["num"], correct_a=a["correct"], num_b=b["num"], correct_b=b["correct"],
        difference=difference,
        outcome="won" if difference > 0 else "lost" if difference < 0 else "even",
        speedup_a=a["speedup"], speedup_b=b["speedup"],
        speedup_ratio=b["speedup"] / a["speedup"] if is_timed and is_one_device else None,
    )  # fmt: skip


def _score(problems: Sequence[ProblemChange]) -> Score | None:
    a = {each.problem_id: Tally(num=each.num_a, correct=each.correct_a) for each in problems}
    b = {each.problem_id: Tally(num=each.num_b, correct=each.correct_b) for each in problems}
    difference = compare_paired(a, b)
    if difference is None:
        return None
    rates = [[t.correct / t.num for t in tallies.values()] for tallies in (a, b)]
    outcomes = [each.outcome for each in problems]
    return Score(
        a=math.fsum(rates[0]) / len(a), b=math.fsum(rates[1]) / len(b), difference=difference,
        num_won=outcomes.count("won"), num_lost=outcomes.count("lost"),
        num_even=outcomes.count("even"),
    )  # fmt: skip


def _parts_of(
    problems: Sequence[ProblemChange], name: Callable[[ProblemChange], str]
) -> tuple[ScorePart, ...]:
    """Scores of the problems with the same name, by source and level."""
    found: dict[str, list[ProblemChange]] = defaultdict(list)
    for each in sorted(problems, key=lambda each: (each.source, each.level)):
        found[name(each)].append(each)
    return tuple(
        ScorePart(
            name=part,
            score=score,
            speed=estimate_difference(
                [math.log2(each.speedup_ratio) for each in of if each.speedup_ratio]
            ),
        )
        for part, of in found.items()
        if (score := _score(of)) is not None
    )


STEP_COLUMNS = (
    "reward", "pass_rate", "pass_rate_multi", "compile_rate", "speedup", "best_speedup",
    "completion_tokens", "truncated_share",
)  # fmt: skip
METRICS = ("train/loss/mean", "train/entropy/mean", "train/kl_behaviour/mean")
SHARES = (0.25, 0.5, 0.75, 1.0)
"""Points of comparison, as shares of the common budget."""
ROUNDED = 1 + 1e-9
"""Allowance for sums of seconds."""

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
    spent: tuple[float | None, ...]
    """Cumulative cost of each place; None if it was not counted."""
    values: dict[str, dict[StageStep, float]]

    @property
    def total(self) -> float | None:
        """Cost of all steps; None if it was not counted."""
        return self.spent[-1] if self.places else 0.0

    def curve(self, name: str) -> tuple[tuple[float, float], ...]:
        values = self.values.get(name, {})
        return tuple(
            (x, values[place])
            for place, x in zip(self.places, self.spent, strict=True)
            if x is not None and place in values
        )


def _has_rollouts(reader: RunReader) -> bool:
    """True if the run trained on rollouts, or intends to."""
    found = reader.value("SELECT 1 FROM groups WHERE purpose = 'train' LIMIT 1")
    return found is not None


def _load_trained_steps(reader: RunReader, by: By, *, of_rollouts: bool) -> TrainedSteps:
    """The steps trained on rollouts, or those of SFT."""
    played = {(row["stage"], row["step"]): row for row in reader.rows(_STEPS)}
    keys = (*METRICS, _WALL)
    stages = {stage for stage, _ in played}
    values: dict[str, dict[StageStep, float]] = defaultdict(dict)
    marks: dict[StageStep, tuple[int, float]] = {}
    for row in reader.rows(_METRICS.format(", ".join("?" * len(keys))), keys):
        place = (row["stage"], row["step"])
        if (row["stage"] in stages) != of_rollouts:
            continue
        if row["value"] is not None:
            values[row["key"]][place] = row["value"]
        if row["key"].startswith("train/"):
            marks[place] = (row["attempt"], row["at"])
    places = tuple(sorted(marks))
    for place in places:
        row = played.get(place, {"is_open": True})
        for name in () if row["is_open"] else STEP_COLUMNS:
            if row[name] is not None:
                values[name][place] = row[name]
    walls = values.pop(_WALL, {}) if of_rollouts else {}  # SFT has one for the whole stage
    costs = list[float | None]()
    for index, place in enumerate(places):
        is_first = not index or places[index - 1][0] != place[0]
        before = None if is_first else places[index - 1]
        if by is By.STEP:
            costs.append(place[1] - (before[1] if before else 0))
        elif by is By.TOKENS:
            costs.append(played.get(place, {}).get("num_completion_tokens"))
        else:
            costs.append(walls.get(place, _seconds_between(before, place, marks)))
    return TrainedSteps(places=places, spent=tuple(accumulate(costs, _added)), values=dict(values))


def _added(total: float | None, cost: float | None) -> float | None:
    """None from the first step with an unknown cost."""
    return None if total is None or cost is None else total + cost


def _seconds_between(
    before: StageStep | None, place: StageStep, marks: Mapping[StageStep, tuple[int, float]]
) -> float:
    """Seconds since the step before, for one that was not measured; 0 across attempts."""
    if before is None or marks[before][0] != marks[place][0]:
        return 0.0
    return max(0.0, marks[place][1] - marks[before][1])


def _compare_curves(a: TrainedSteps, b: TrainedSteps, *, budget: float) -> tuple[CurvePair, ...]:
    """Curves of every metric that both runs have."""
    xs = [share * budget for share in SHARES]
    return tuple(
        CurvePair(
            name=name, a=left, b=right,
            at=tuple(CurvePoint(x=x, a=_mean_at(left, x), b=_mean_at(right, x)) for x in xs),
        )
        for name in (*STEP_COLUMNS, *METRICS)
        if (left := a.curve(name)) and (right := b.curve(name))
    )  # fmt: skip


def _mean_at(curve: tuple[tuple[float, float], ...], x: float) -> float | None:
    end = bisect_right([point[0] for point in curve], x * ROUNDED)
    last = [value for _, value in curve[max(0, end - WINDOW) : end]]
    return sum(last) / len(last) if last else None


_EVALUATIONS = """
SELECT *, json_extract(detail, '$.sources') AS sources
FROM v_evaluations WHERE stage_index IS NOT NULL ORDER BY at DESC
"""
_ANSWERS = f"""
SELECT g.problem_id, coalesce(p.family, '') AS family, coalesce(p.level, 0) AS level, t.sha256,
    json_group_array(DISTINCT v.device) AS devices, count(*) AS num,
    coalesce(sum(v.status = 'correct'), 0) AS correct,
    max(CASE WHEN v.status = 'correct' THEN v.speedup END) AS speedup
{FIRST_ANSWERS} GROUP BY g.problem_id
"""
Answers = Mapping[str, Mapping[str, Any]]
"""Rows of _ANSWERS by problem, with the list of `devices` and the name of the `source`."""


def _choose_evaluation(
    reader: RunReader, steps: TrainedSteps, budget: float | None
) -> tuple[str | None, Answers]:
    """The latest evaluation within the budget, or of all if costs are unknown: its name and its
    first answers; None and no answers without one."""
    for row in reader.rows(_EVALUATIONS):
        place = (row["stage_index"], row["step"])
        index = bisect_right(steps.places, place)
        spent = steps.spent[index - 1] if index else 0.0
        if spent is not None and budget is not None and spent > budget * ROUNDED:
            continue
        sources = json.loads(row["sources"] or "{}")
        answers = {
            each["problem_id"]: each
            | {
                "source": sources.get(each["problem_id"], ""),
                "devices": sorted(filter(None, json.loads(each["devices"]))),
            }
            for each in reader.rows(_ANSWERS, {"stage": place[0], "step": place[1]})
        }
        if answers:
            name = f"{row['stage']} at step {row['step']}"
            return ", ".join(filter(None, (name, words_of(row)["trained"]))), answers
    return None, {}
