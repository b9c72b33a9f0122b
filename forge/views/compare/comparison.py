"""A comparison of two runs: its records and its text. All differences are b minus a."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from forge.store.read_only import RowTable
from forge.views.text.numbers import NONE, digits, percent, without_empty
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Group as RichGroup

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
    """`rollout.group_size`; `stages`, and `stage.grpo.steps` or `stage.grpo[1].steps` for the
    second of a kind; `code.commit`, `versions.torch`, `machine.cores` for the code and machine of a
    run."""
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
    """The score of one level, or of one device's verdicts."""

    name: str
    score: Score
    speed: Estimate | None
    """log2 of b's best speedup over a's, for problems that both have timed: 1 is twice as fast."""


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
    by_device: tuple[ScorePart, ...]
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
    sections_of = {
        "by source": found.by_source, "by level": found.by_level, "by device": found.by_device,
    }  # fmt: skip
    for title, sections in sections_of.items():
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
