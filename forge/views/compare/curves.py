"""Learning curves of two runs over the same steps, tokens or seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.views.compare.records import By, CurvePair, CurvePoint

if TYPE_CHECKING:
    from forge.store.reader import RunReader

STEP_COLUMNS = (
    "reward", "pass_rate", "pass_rate_multi", "compile_rate", "speedup", "best_speedup",
    "completion_tokens", "truncated_share",
)  # fmt: skip
METRICS = ("train/loss/mean", "train/entropy/mean", "train/kl_behaviour/mean")
WINDOW = 5
"""Steps averaged: one step's reward comes from few problems."""
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
