"""Charts of a run: evaluations, training by step, and time. Open steps are left out.

`PLOTS` is the table of the charts by step: each takes columns of one source, a query that gives
(stage, step, name, value), or a number for each column of a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from forge.views.report.charts import Chart, Line, label, make_line, spread
from forge.views.run_state import parts_of, stage_name, trained_label
from forge.views.text.numbers import finite

if TYPE_CHECKING:
    from forge.store.read_only import Params
    from forge.store.reader import RunReader

MOST_CURVES = 6
"""Evaluations in one chart of curves: the first, the last, and some between."""

STEPS = """
SELECT stage, step, is_open, num_groups, num_expected_groups, reward, pass_rate, pass_rate_multi,
    compile_rate, speedup, best_speedup, completion_tokens, truncated_share,
    1.0 * coalesce(num_flat_groups, 0) / nullif(num_groups, 0) AS flat_share
FROM v_steps ORDER BY stage, step
"""
TERMS = """
SELECT r.stage, r.step, r.term AS name,
    r.mean * r.num_turns / (s.num_turns - coalesce(s.num_masked, 0)) AS value
FROM v_reward_terms r JOIN v_steps s ON s.stage = r.stage AND s.step = r.step
WHERE r.purpose = 'train' AND NOT s.is_open ORDER BY r.stage, r.step, r.term
"""
"""A turn without a term earned nothing from it, so the means of all terms add up to the reward."""
STEP_PARTS = {
    "step/wall/seconds": "whole step",
    "train/step/seconds": "trainer steps",
    "train/wait/seconds": "trainer waits for a batch",
    "train/publish_wait/seconds": "trainer waits for a publish",
    "weights/publish/seconds": "weights to the replicas",
}
"""Metric to its label."""
_PARTS = ", ".join(f"'{key}'" for key in STEP_PARTS)
SOURCES = {
    "metrics": """
SELECT stage, step, key AS name, value FROM v_metrics
WHERE key IN ('train/loss/mean', 'train/entropy/mean', 'train/grad_norm/value',
    'train/token_accuracy/mean') OR key GLOB 'train/kl*'
ORDER BY stage, step, key
""",
    "staleness": """
SELECT stage, step, 'mean' AS name, sum(staleness * share) AS value FROM v_staleness
GROUP BY stage, step
UNION ALL SELECT stage, step, 'oldest', max(staleness) FROM v_staleness GROUP BY stage, step
ORDER BY stage, step
""",
    "levels": """
SELECT l.stage, l.step, 'level ' || l.level AS name,
    sum(l.pass_rate * l.num_groups) / sum(l.num_groups) AS value
FROM v_levels l JOIN v_steps s ON s.stage = l.stage AND s.step = l.step
WHERE l.pass_rate IS NOT NULL AND NOT s.is_open
GROUP BY l.stage, l.step, l.level ORDER BY l.stage, l.step, l.level
""",
    "terms": TERMS,
    "failures": """
SELECT s.stage, s.step, k.status AS name,
    1.0 * coalesce(sum(f.num_turns), 0) / s.num_turns AS value
FROM v_steps s CROSS JOIN (SELECT DISTINCT status FROM v_failures WHERE purpose = 'train') k
LEFT JOIN v_failures f ON f.purpose = 'train' AND f.status = k.status AND f.stage = s.stage
    AND f.step = s.step
WHERE NOT s.is_open AND s.num_turns > 0 GROUP BY s.stage, s.step, k.status
ORDER BY s.stage, s.step, k.status
""",
    "idle": """
SELECT stage, step, role AS name, idle_share AS value FROM v_idle
WHERE step_s > 0 AND stage = (SELECT max(stage) FROM v_idle WHERE step_s > 0)
ORDER BY stage, step, role
""",
    "parts": f"""
SELECT stage, step, key AS name, value FROM v_metrics WHERE key IN ({_PARTS})
    AND stage = (SELECT max(stage) FROM v_metrics WHERE key IN ({_PARTS}))
ORDER BY stage, step
""",
}
SPREAD = """
SELECT s.stage, s.step, 2 * sqrt(max(0, sum(g.num_turns * g.num_turns * (g.reward - s.reward)
    * (g.reward - s.reward))) * count(*) / (count(*) - 1.0)) / sum(g.num_turns) AS errors
FROM v_steps s JOIN v_groups g ON g.stage = s.stage AND g.step = s.step
WHERE g.purpose = 'train' AND g.reward IS NOT NULL AND s.reward IS NOT NULL
GROUP BY s.stage, s.step HAVING count(*) > 2
"""
"""Two standard errors of the mean reward over the groups of a step, from three groups on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A chart by step."""

    name: str
    title: str
    y_label: str
    source: str = "steps"
    """`steps`, or a name of SOURCES."""
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Column to the label of its line, empty for the stage's name; none: all of the source."""
    is_share: bool = False
    highest: Sequence[str] = ()
    """Columns of which merged points keep the highest."""
    kind: str = ""
    """Kind of the stages; empty for all."""
    note: str = ""


MAIN = (
    Plot(name="reward", title="Reward", y_label="mean over turns", columns={"reward": "reward"},
         note="The band is two standard errors over the groups of a step."),
    Plot(name="pass-rate", title="Pass rate", y_label="share", is_share=True,
         columns={"pass_rate": "first turn", "pass_rate_multi": "any turn",
                  "compile_rate": "first turn compiles"}),
    Plot(name="speedup", title="Speed-up of correct kernels", y_label="times as fast",
         columns={"speedup": "mean", "best_speedup": "highest"}, highest=("best_speedup",),
         note="As measured; kernels are ranked by the lower end of the interval."),
    Plot(name="sft-loss", title="SFT loss", y_label="loss", source="metrics", kind="sft",
         columns={"train/loss/mean": ""}),
)  # fmt: skip
"""The charts that say whether it learned."""
MORE = (
    Plot(name="levels", title="Pass rate by level", y_label="share", source="levels",
         is_share=True),
    Plot(name="reward-terms", title="Reward terms", y_label="mean over turns", source="terms",
         note="Mean reward by term; a turn without the term counts as 0."),
    Plot(name="length", title="Length", y_label="tokens per answer",
         columns={"completion_tokens": "mean"}),
    Plot(name="waste", title="Without a signal", y_label="share", is_share=True,
         columns={"flat_share": "flat groups", "truncated_share": "truncated answers"},
         note="Flat: all siblings earned the same, so that the group teaches nothing."),
    Plot(name="kl", title="KL", y_label="nats per token", source="kl"),
    Plot(name="entropy", title="Entropy", y_label="nats per token", source="metrics",
         columns={"train/entropy/mean": "mean"}),
    Plot(name="staleness", title="Staleness", y_label="steps", source="staleness",
         highest=("oldest",),
         note="Steps between the weights that made a sample and those it trained."),
    Plot(name="loss", title="Loss", y_label="loss", source="metrics", kind="grpo",
         columns={"train/loss/mean": ""}),
    Plot(name="sft-accuracy", title="SFT token accuracy", y_label="share", source="metrics",
         columns={"train/token_accuracy/mean": ""}, is_share=True),
    Plot(name="grad-norm", title="Gradient norm", y_label="norm", source="metrics", kind="grpo",
         columns={"train/grad_norm/value": ""}),
    Plot(name="sft-grad-norm", title="SFT gradient norm", y_label="norm", source="metrics",
         columns={"train/grad_norm/value": ""}, kind="sft"),
)  # fmt: skip
FAILURES = (
    Plot(name="failures", title="Failed turns by status", y_label="share of turns",
         source="failures", is_share=True),
)  # fmt: skip
TIMES = (
    Plot(name="idle", title="Idle share", y_label="share of the step", source="idle", is_share=True,
         note="A replica or judge is idle without a request, the trainer while it waits for a "
         "batch."),
    Plot(name="step-time", title="Seconds per step", y_label="seconds", source="parts",
         columns=STEP_PARTS),
)  # fmt: skip

Points = dict[int, list[tuple[int, float | None]]]
"""Points of a column, (step, value), by stage."""


class Training:
    """Numbers by step and stage, and their charts."""

    def __init__(
        self, reader: RunReader, *, stages: Sequence[Any], evaluations: Sequence[dict[str, Any]]
    ) -> None:
        steps = ask(reader, STEPS)
        self.steps = [row for row in steps if not row["is_open"]]
        self.open_steps = [row for row in steps if row["is_open"]]
        self._stages, self._evaluations = stages, evaluations
        self._errors = {(row["stage"], row["step"]): row["errors"] for row in ask(reader, SPREAD)}
        self._sources = {name: _read(reader, sql) for name, sql in SOURCES.items()}
        self._sources["kl"] = {
            key.removeprefix("train/kl").strip("_/").split("/")[0] or "mean": points
            for key, points in self._sources["metrics"].items()
            if key.startswith("train/kl")
        }
        self._sources["steps"] = columns = defaultdict[str, Points](dict)
        for row in self.steps:
            for name in row.keys() - {"stage", "step"}:
                columns[name].setdefault(row["stage"], []).append((row["step"], row[name]))

    def charts(self, plots: Sequence[Plot]) -> list[Chart]:
        """The charts of the plots, including empty ones."""
        return [self._with_held_out(self._chart(plot)) for plot in plots]

    def _chart(self, plot: Plot) -> Chart:
        found = self._sources[plot.source]
        columns = plot.columns or {name: name for name in found}
        stages = sorted({
            stage for name in columns for stage in found.get(name, ())
            if plot.kind in ("", self._name(stage).partition("-")[0])
        })  # fmt: skip
        lines = [
            self._banded(plot, stage, make_line(
                self._label(stages, stage, words), found[name][stage],
                reduce=max if name in plot.highest else fmean,
            ))
            for stage in stages for name, words in columns.items()
            if stage in found.get(name, ())
        ]  # fmt: skip
        return Chart(
            name=plot.name, title=plot.title, y_label=plot.y_label, is_share=plot.is_share,
            lines=tuple(line for line in lines if line.points), note=plot.note,
        )  # fmt: skip

    def _banded(self, plot: Plot, stage: int, line: Line) -> Line:
        """The reward with its interval, if no points were merged."""
        errors = [self._errors.get((stage, int(step))) for step in line.x]
        if plot.name != "reward" or line.num_together > 1 or not any(errors):
            return line
        ends = [
            (None, None) if y is None or error is None else (y - error, y + error)
            for y, error in zip(line.y, errors, strict=True)
        ]
        return replace(line, low=[low for low, _ in ends], high=[high for _, high in ends])

    def _with_held_out(self, chart: Chart) -> Chart:
        """The pass rate with a point for each evaluation within, before and after its stages."""
        if chart.name != "pass-rate":
            return chart
        stages = sorted({row["stage"] for row in self.steps})
        points = {stage: self._around(stage) for stage in stages}
        trained = [trained_label(row) for found in points.values() for _, row in found]
        kind = "evaluated" if any(trained) else "held-out"
        lines = [
            replace(_measured(found), label=self._label(stages, stage, f"{kind} problems"))
            for stage, found in points.items() if found
        ]  # fmt: skip
        for stage, found in points.items():
            lines += _source_lines(found, prefix=f"{self._label(stages, stage, kind)}: ")
        if not lines:
            return chart
        note = f"Points: first turns on {kind} problems, with the 95 % interval over problems."
        note += f" The last one: {trained[-1]}." if trained[-1] else ""
        return replace(chart, lines=(*chart.lines, *lines), note=note)

    def _around(self, stage: int) -> list[tuple[int, dict[str, Any]]]:
        """(step, evaluation) within a stage, with the last one before it and the first after."""
        last_step = max(row["step"] for row in self.steps if row["stage"] == stage)
        placed = [row for row in self._evaluations if row["stage_index"] is not None]
        before = [row for row in placed if row["stage_index"] < stage][-1:]
        after = [row for row in placed if row["stage_index"] > stage][:1]
        within = [(row["step"], row) for row in placed if row["stage_index"] == stage]
        return [*((0, row) for row in before), *within, *((last_step, row) for row in after)]

    def _name(self, stage: int) -> str:
        return stage_name(self._stages, stage)

    def _label(self, stages: Sequence[int], stage: int, words: str) -> str:
        """`mean`; with several stages `grpo-3 mean`; without words the stage."""
        if not words:
            return label(self._name(stage))
        return label(words if len(stages) == 1 else f"{self._name(stage)} {words}")


def ask(reader: RunReader, sql: str, params: Params = ()) -> list[dict[str, Any]]:
    """The rows; a number that is not finite is None."""
    return finite(reader.rows(sql, params))


def _read(reader: RunReader, sql: str) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for row in ask(reader, sql):
        points = found.setdefault(str(row["name"]), {}).setdefault(row["stage"], [])
        points.append((row["step"], row["value"]))
    return found


PASS_AT_K = "SELECT stage, k AS x, pass_at_k AS y, ci_low AS low, ci_high AS high FROM v_pass_at_k"
FAST_P = """
SELECT coalesce(e.stage, 'stage ' || f.stage || ' step ' || f.step) AS stage, f.p AS x,
    f.fast_p AS y, f.ci_low AS low, f.ci_high AS high
FROM v_fast_p f LEFT JOIN v_evaluations e ON e.stage_index = f.stage AND e.step = f.step
WHERE f.fast_p IS NOT NULL
    AND (f.stage, f.step) IN (SELECT stage, step FROM v_fast_p WHERE p > 0 AND fast_p > 0)
ORDER BY f.stage, f.step, f.p
"""
"""Without evaluations in which nothing was correct, or timed."""


def measured_charts(reader: RunReader, evaluations: Sequence[dict[str, Any]]) -> list[Chart]:
    """Charts of evaluations: rates, pass@k and fast_p."""
    return [
        evaluation_chart(evaluations),
        Chart(
            name="pass-at-k", title="pass@k", x_label="k", y_label="share of judged problems",
            lines=_curves(ask(reader, PASS_AT_K)), is_share=True,
            note="The chance that one of k first turns is correct (unbiased), over the judged "
            "problems with k samples; the band is the 95 % interval over problems.",
        ),
        Chart(
            name="fast-p", title="fast_p", x_label="p, times as fast as the baseline",
            y_label="share of first turns", lines=_curves(ask(reader, FAST_P)), is_share=True,
            note="First turns of evaluations that are correct and more than p times as fast; the "
            "band is the 95 % interval over problems.",
        ),
    ]  # fmt: skip


def evaluation_chart(evaluations: Sequence[dict[str, Any]]) -> Chart:
    """pass@1 with its interval, and the other rates, by evaluation."""
    points = list(enumerate(evaluations))
    rates = {
        "greedy": "pass_at_1_greedy", "any turn": "pass_at_1_multi", "compiles": "compile_rate",
    }  # fmt: skip
    lines = [
        _measured(points),
        *_source_lines(points),
        *(
            Line(label=name, x=[x for x, _ in points], y=[row[key] for _, row in points],
                 is_points=True)
            for name, key in rates.items()
        ),
    ]  # fmt: skip
    return Chart(
        name="evaluations", title="Evaluations", x_label="evaluation",
        y_label="share of judged problems",
        names=tuple(label(row["stage"]) for row in evaluations),
        lines=tuple(line for line in lines if line.points), is_share=True,
        note="pass@1: first turns, sampled, with the 95 % interval over problems. Greedy: "
        "first turns at temperature 0. Any turn: rollouts with a correct turn. Compiles: first "
        "turns whose own kernel launched.",
    )  # fmt: skip


def _measured(points: Sequence[tuple[int, dict[str, Any]]]) -> Line:
    """pass@1 of evaluations with its interval."""
    return Line(
        label="pass@1", x=[x for x, _ in points], y=[row["pass_at_1"] for _, row in points],
        low=[row["ci_low"] for _, row in points], high=[row["ci_high"] for _, row in points],
        is_points=True,
    )  # fmt: skip


def _source_lines(points: Sequence[tuple[int, dict[str, Any]]], prefix: str = "") -> list[Line]:
    """pass@1 of each of several sources, by evaluation."""
    found = [(x, parts_of(row)) for x, row in points]
    names = dict.fromkeys(name for _, parts in found for name in parts if name)
    of = {name: [(x, parts[name][""]) for x, parts in found if name in parts] for name in names}
    return [
        replace(make_line(label(f"{prefix}{name}"), each), is_points=True)
        for name, each in of.items()
    ]


def _curves(rows: Sequence[dict[str, Any]]) -> tuple[Line, ...]:
    """A line for each evaluation with several points; of many, MOST_CURVES of them."""
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_name[row["stage"]].append(row)
    return tuple(
        Line(
            label=label(name), x=[row["x"] for row in of], y=[row["y"] for row in of],
            low=[row["low"] for row in of if has_ends],
            high=[row["high"] for row in of if has_ends],
        )
        for name in spread(list(by_name), MOST_CURVES)
        for of in [by_name[name]]
        for has_ends in [all(row["low"] is not None for row in of)]
        if len(of) > 1
    )  # fmt: skip
