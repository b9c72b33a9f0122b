"""Compares two runs: settings, learning curves over the same steps, tokens or seconds, problems won
and lost, with intervals.

`compare(a, b, by=By.STEP)` gives a `Comparison`, data only; `render_comparison` prints it. Called
by `forge compare A B`, the monitor and notebooks. What cannot be compared is a line in
`Comparison.notes`: never an error, and never a number with another meaning. All differences are b
minus a. Both runs are read once each.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import tomli

from forge.store.read_only import RowTable
from forge.views.gains import FIRST_ANSWERS
from forge.views.run_state import run_state, trained_label
from forge.views.statistics import Tally, compare_paired, estimate_difference
from forge.views.text.numbers import NONE, digits, percent, without_empty
from forge.views.text.secrets import HIDDEN, is_secret
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Group as RichGroup

    from forge.store.reader import RunReader
    from forge.views.statistics import Estimate
    from forge.views.text.fitting import Fitting


class By(StrEnum):
    """Quantity that both runs get the same amount of."""

    STEP = "step"
    """Training steps: of GRPO if either run has them, else of SFT."""
    TOKENS = "tokens"
    """Completion tokens generated for training."""
    TIME = "time"
    """Seconds of training steps, without evaluations and without the time between attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

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
    """A setting that differs."""

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
class ProblemChange:
    """One problem that both evaluated."""

    problem_id: str
    family: str
    level: int
    num_a: int
    correct_a: int
    num_b: int
    correct_b: int
    difference: float
    """Difference of the shares of correct first turns."""
    speedup_a: float | None
    """Best of the evaluation's correct answers."""
    speedup_b: float | None

    @property
    def outcome(self) -> str:
        """`won` if b is better, `lost`, `even`."""
        return "won" if self.difference > 0 else "lost" if self.difference < 0 else "even"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePart:
    """The score of one source or level."""

    name: str
    score: Score
    speed: Estimate | None
    """log2 of b's best speedup over a's, for problems that one device has timed for both: 1 is
    twice as fast."""


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
        """The object that `forge compare --json` prints."""
        out = asdict(self)
        for row, problem in zip(out["problems"], self.problems, strict=True):
            row["outcome"] = problem.outcome
        return out


WINDOW = 5
"""Steps averaged: one step's reward comes from few problems."""
NUM_PROBLEMS = 10
"""Problems shown of each kind; --json has all."""
NUM_POINTS = 3
"""Points of comparison that fit beside each other."""
VALUE_CHARACTERS = 30
_UNITS = {By.STEP: "steps", By.TOKENS: "tokens", By.TIME: "s"}


def render_comparison(found: Comparison) -> RichGroup:
    """Score first, then its reasons: settings, curves, problems, parts."""
    from rich.console import Group as RichGroup
    from rich.text import Text

    parts: list[Any] = [Text(printable(_head(found)), style="bold")]
    if found.score is not None:
        parts.append(Text(_sentence(found.score)))
    parts += [Text(printable(f"note: {note}"), style="yellow") for note in found.notes]
    if found.config:
        rows = tuple((each.key, _value(each.a), _value(each.b)) for each in found.config)
        table = _table(("key", "a", "b"), rows)
        parts += [Text(""), Text("settings that differ", style="bold"), table]
    if found.curves:
        title = f"curves at equal {found.by}, means of the last {WINDOW} steps, a → b"
        parts += [Text(""), Text(title, style="bold"), _render_curves(found)]
    for title, sections in {"by source": found.by_source, "by level": found.by_level}.items():
        if sections:
            parts += [Text(""), Text(title, style="bold"), _render_parts(sections)]
    won = [each for each in reversed(found.problems) if each.outcome == "won"]
    lost = [each for each in found.problems if each.outcome == "lost"]
    for title, problems in (("won by b", won), ("lost by b", lost)):
        if problems:
            more = max(0, len(problems) - NUM_PROBLEMS)
            words = f"{title}: {len(problems)} problems" + (f", {more} not shown" if more else "")
            parts += [Text(""), Text(words, style="bold"), _render_problems(problems)]
    return RichGroup(*parts)


def _head(found: Comparison) -> str:
    sides = [
        f"{letter} {side.name} ({side.state}"
        + (f", {side.spent:,.0f} {_UNITS[found.by]}" if side.spent is not None else "")
        + (f", {side.evaluation}" if side.evaluation else "")
        + ")"
        for letter, side in (("a", found.a), ("b", found.b))
    ]
    return "\n".join(sides)


def _sentence(score: Score) -> str:
    verdict = "beyond chance" if score.is_certain else "within chance"
    return (
        f"pass@1 {percent(score.a)} → {percent(score.b)}: {_points(score.difference.value)} points "
        f"({_points(score.difference.low)} to {_points(score.difference.high)}, 95 %): {verdict}\n"
        f"{score.difference.num_problems} problems, paired: {score.num_won} won, "
        f"{score.num_lost} lost, {score.num_even} even"
    )


def _render_curves(found: Comparison) -> Fitting:
    unit = _UNITS[found.by]
    xs = found.curves[0].at[-NUM_POINTS:]
    columns = ("metric", *(f"{point.x:,.0f} {unit}" for point in xs))
    rows = tuple(
        (
            curve.name.removeprefix("train/").removesuffix("/mean"),
            *(f"{digits(point.a)} → {digits(point.b)}" for point in curve.at[-NUM_POINTS:]),
        )
        for curve in found.curves
    )
    return _table(columns, rows)


def _render_parts(parts: tuple[ScorePart, ...]) -> Fitting:
    columns = ("", "n", "a", "b", "b − a", "95 %", "won", "lost", "speed b/a")
    rows = [
        (
            part.name,
            part.score.difference.num_problems,
            percent(part.score.a),
            percent(part.score.b),
            _points(part.score.difference.value),
            f"{_points(part.score.difference.low)} to {_points(part.score.difference.high)}",
            part.score.num_won,
            part.score.num_lost,
            _speed(part),
        )
        for part in parts
    ]
    columns, rows = without_empty(columns, rows)
    return _table(columns, rows)


def _render_problems(problems: list[ProblemChange]) -> Fitting:
    columns = ("problem", "level", "a", "b", "b − a", "speed-up a", "speed-up b")
    rows = [
        (
            each.problem_id,
            each.level,
            f"{each.correct_a}/{each.num_a}",
            f"{each.correct_b}/{each.num_b}",
            _points(each.difference),
            digits(each.speedup_a),
            digits(each.speedup_b),
        )
        for each in problems[:NUM_PROBLEMS]
    ]
    columns, rows = without_empty(columns, rows)
    return _table(columns, rows)


def _speed(part: ScorePart) -> str:
    if part.speed is None:
        return NONE
    value, low, high = (2.0**x for x in (part.speed.value, part.speed.low, part.speed.high))
    return f"{value:.2f}× ({low:.2f}–{high:.2f})"


def _points(value: float) -> str:
    """`+12.5`: percentage points."""
    return f"{100 * value:+.1f}"


def _value(value: Any) -> str:
    if value is None:
        return NONE
    text = str(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 1]}…"


def _table(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> Fitting:
    from forge.views.text.fitting import Fitting

    return Fitting(RowTable(columns=tuple(columns), rows=tuple(rows)))


ABSENT = object()

_MADE_WITH = """
SELECT code_commit, code_diff <> '' AS has_diff, seed, versions, machine FROM attempts
ORDER BY attempt DESC LIMIT 1
"""


def find_changes(a: RunReader, b: RunReader) -> tuple[Change, ...]:
    """Keys of the experiment, then of the last attempt's code and machine, where they differ. A
    stage that only one run has appears in `stages`, without its keys.
    """
    found_a, found_b = _settings(a), _settings(b)
    both = _stages(found_a) & _stages(found_b)
    return tuple(
        Change(key=key, a=_shown(key, found_a), b=_shown(key, found_b))
        for key in {**found_a, **found_b}
        if found_a.get(key, ABSENT) != found_b.get(key, ABSENT)
        and (not key.startswith("stage.") or _stage_of(key) in both)
    )


def _shown(key: str, settings: Mapping[str, Any]) -> Any:
    return HIDDEN if key in settings and is_secret(key) else settings.get(key)


def _experiment(tables: dict[str, Any]) -> dict[str, Any]:
    """A flat experiment, with stages named by kind and round: stages of one kind and round are
    compared with each other.
    """
    stages = tables.pop("stage", [])
    out = dict(_flat(tables))
    rounds = [stage.pop("round", None) for stage in stages]
    kinds = [
        str(stage.get("kind")) + (f" (round {number})" if number else "")
        for stage, number in zip(stages, rounds, strict=True)
    ]
    out["stages"] = " → ".join(kinds)
    for index, (kind, stage) in enumerate(zip(kinds, stages, strict=True)):
        before = kinds[:index].count(kind)
        name = f"stage.{kind}[{before}]." if before else f"stage.{kind}."
        out |= dict(_flat(stage, place=name))
    return out


def _stages(settings: Mapping[str, Any]) -> set[str]:
    return {_stage_of(key) for key in settings if key.startswith("stage.")}


def _stage_of(key: str) -> str:
    """`stage.grpo[1]` of `stage.grpo[1].steps`."""
    return ".".join(key.split(".")[:2])


def _settings(reader: RunReader) -> dict[str, Any]:
    text = reader.value("SELECT experiment FROM runs LIMIT 1") or ""
    try:
        settings = _experiment(tomli.loads(text))
    except tomli.TOMLDecodeError:  # a run made by hand
        settings = {}
    made = reader.one(_MADE_WITH)
    if made is None:
        return settings
    settings |= {"code.commit": made["code_commit"], "code.is_changed": bool(made["has_diff"])}
    settings |= dict(_flat(json.loads(made["versions"]), place="versions."))
    return settings | dict(_flat(json.loads(made["machine"]), place="machine."))


def _flat(table: Mapping[str, Any], *, place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, place=f"{place}{key}.")
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            for index, one in enumerate(value):
                yield from _flat(one, place=f"{place}{key}[{index}].")
        else:
            yield f"{place}{key}", value


UNIT = {By.STEP: "steps", By.TOKENS: "tokens", By.TIME: "seconds"}
INSTEAD = "no curves; the last evaluations are compared"


def compare(a: RunReader, b: RunReader, *, by: By = By.STEP) -> Comparison:
    """Compares two runs at equal steps, tokens or time."""
    runs, notes = (a, b), list[str]()
    of_rollouts = any(has_rollouts(reader) for reader in runs)
    left, right = (load_trained_steps(reader, of_rollouts=of_rollouts) for reader in runs)
    budget = _budget(runs, (left, right), by, of_rollouts=of_rollouts, notes=notes)
    chosen_a = choose_evaluation(a, left, by=by, budget=budget)
    chosen_b = choose_evaluation(b, right, by=by, budget=budget)
    both = _common(runs, (chosen_a, chosen_b), by=by, budget=budget, notes=notes)
    has_sources = len({answers.origin for answers, _ in both.values()}) > 1
    return Comparison(
        by=by,
        budget=budget,
        a=_side(a, left, chosen_a, by=by),
        b=_side(b, right, chosen_b, by=by),
        config=find_changes(a, b),
        curves=compare_curves(left, right, by=by, budget=budget) if budget else (),
        score=score(both),
        problems=compare_problems(both),
        by_source=parts_of(both, lambda each: (each.origin,), name="{}") if has_sources else (),
        by_level=parts_of(
            both,
            lambda each: (each.origin if has_sources else "", each.level),
            name="{} level {}",
        ),
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
    runs: Sequence[RunReader], trained: Sequence[TrainedSteps], by: By, *,
    of_rollouts: bool, notes: list[str],
) -> float | None:  # fmt: skip
    """Common budget; None if a run has no steps or did not count the quantity."""
    known = list[float]()
    for reader, steps in zip(runs, trained, strict=True):
        spent = steps.total(by)
        if not steps.places:
            kind = "step of grpo" if of_rollouts else "step"
            notes.append(f"{reader.paths.name} has trained no {kind}: {INSTEAD}")
        elif spent is None:
            notes.append(f"{reader.paths.name} did not count its {UNIT[by]}: {INSTEAD}")
        else:
            known.append(spent)
    return min(known) if len(known) == 2 else None


def _common(
    runs: Sequence[RunReader], evaluations: Sequence[Chosen | None], *,
    by: By, budget: float | None, notes: list[str],
) -> Both:  # fmt: skip
    """Answers to the problems that are the same in both, by name and source."""
    found = [chosen.answers for chosen in evaluations if chosen is not None]
    for reader, chosen in zip(runs, evaluations, strict=True):
        if chosen is None:
            when = "" if budget is None else f" after at most {budget:,.0f} {UNIT[by]}"
            notes.append(f"{reader.paths.name} has no evaluation{when}: no problems won or lost")
    if len(found) < 2:
        return {}
    a, b = found
    names = sorted(a.keys() & b.keys())
    same = {name: (a[name], b[name]) for name in names if a[name].source == b[name].source}
    if not names:
        left, right = (reader.paths.name for reader in runs)
        named = f"{left} evaluated {_some(a)}, {right} {_some(b)}"
        notes.append(f"no problem in common: {named}")
    elif len(same) < len(names):
        number = len(names) - len(same)
        notes.append(f"{number} problems share a name but not their source: left out")
    if same and len(same) < max(len(a), len(b)):
        notes.append(f"{len(same)} problems in common, of {len(a)} and {len(b)} evaluated")
    return same


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
    costs: dict[By, list[float | None]] = {by: [] for by in By}
    for index, place in enumerate(places):
        stage, step = place
        before = places[index - 1] if index and places[index - 1][0] == stage else None
        costs[By.STEP].append(step if before is None else step - before[1])
        costs[By.TOKENS].append(played.get(place, {}).get("num_completion_tokens"))
        costs[By.TIME].append(walls.get(place, _seconds_between(before, place, marks)))
    spent = {by: tuple(accumulate(each, _added)) for by, each in costs.items()}
    return TrainedSteps(places=places, spent=spent, values=dict(values))


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


_EVALUATIONS = """
SELECT stage, stage_index, step, at, num_problems, num_trained_problems, num_shared_problems,
    json_extract(detail, '$.sources') AS sources
FROM v_evaluations WHERE stage_index IS NOT NULL ORDER BY at
"""
_ANSWERS = f"""
SELECT g.problem_id, coalesce(p.family, '') AS family, coalesce(p.level, 0) AS level,
    t.sha256 AS source, json_group_array(DISTINCT v.device) AS devices, count(*) AS num,
    coalesce(sum(v.status = 'correct'), 0) AS correct,
    max(CASE WHEN v.status = 'correct' THEN v.speedup END) AS speedup
{FIRST_ANSWERS} GROUP BY g.problem_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Results of an evaluation's first turns on one problem."""

    family: str
    level: int
    origin: str
    """Name of its source; empty if the run has one."""
    source: bytes | None
    tally: Tally
    speedup: float | None
    """The best of the correct ones; None without times."""
    devices: tuple[str, ...]
    """Devices of their judges."""


Both = Mapping[str, tuple[Answers, Answers]]
"""Problems of two evaluations, and the answers of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The evaluation of a run that is compared."""

    name: str
    answers: Mapping[str, Answers]

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of its judges."""
        return tuple(sorted({name for each in self.answers.values() for name in each.devices}))


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
    return {
        row["problem_id"]: Answers(
            family=row["family"],
            level=row["level"],
            origin=sources.get(row["problem_id"], ""),
            source=row["source"],
            tally=Tally(num=row["num"], correct=row["correct"]),
            speedup=row["speedup"],
            devices=tuple(sorted(filter(None, json.loads(row["devices"])))),
        )
        for row in reader.rows(_ANSWERS, {"stage": stage, "step": step})
    }


def compare_problems(both: Both) -> tuple[ProblemChange, ...]:
    """Problems of both, largest loss first."""
    out = [_change(name, *pair) for name, pair in both.items()]
    return tuple(sorted(out, key=lambda each: (each.difference, each.problem_id)))


def score(both: Both) -> Score | None:
    """pass@1 of both on their common problems; None if there are none with samples."""
    a, b = ({name: pair[side].tally for name, pair in both.items()} for side in (0, 1))
    difference = compare_paired(a, b)
    if difference is None:
        return None
    rates = [(a[n].correct / a[n].num, b[n].correct / b[n].num) for n in a if a[n].num and b[n].num]
    return Score(
        a=math.fsum(left for left, _ in rates) / len(rates),
        b=math.fsum(right for _, right in rates) / len(rates),
        difference=difference,
        num_won=sum(right > left for left, right in rates),
        num_lost=sum(right < left for left, right in rates),
        num_even=sum(right == left for left, right in rates),
    )


def parts_of(
    both: Both, key: Callable[[Answers], tuple[str | int, ...]], *, name: str
) -> tuple[ScorePart, ...]:
    """Scores of the problems whose answers in a have the same key, which `name` shows."""
    found: dict[tuple[str | int, ...], dict[str, tuple[Answers, Answers]]] = defaultdict(dict)
    for problem, pair in both.items():
        found[key(pair[0])][problem] = pair
    parts = {name.format(*each).strip(): found[each] for each in sorted(found)}
    return tuple(
        ScorePart(name=part, score=scored, speed=estimate_difference(_ratios(parts[part])))
        for part in parts
        if (scored := score(parts[part])) is not None
    )


def _ratios(both: Both) -> list[float]:
    """log2 of b's best speedup over a's, for problems that one device has timed for both: times of
    different cards are not comparable."""
    return [
        math.log2(b.speedup / a.speedup)
        for a, b in both.values()
        if a.speedup and b.speedup and a.devices == b.devices and len(a.devices) == 1
    ]


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
        speedup_a=a.speedup,
        speedup_b=b.speedup,
    )
