"""Charts of a run: evaluations, training by step, and time; a table with the same numbers, and
drawings as SVG and PNG by matplotlib.

A chart by step takes columns of one source: a query that gives (stage, step, name, value), or a
number for each column of a step. Open steps are left out. Equal charts give
equal bytes (fixed hash salt, no date); the user's matplotlibrc has no effect; a label is text,
never a formula. Imported only when a report is made: matplotlib takes 0.3 s.
"""

from __future__ import annotations

import io
import warnings
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import matplotlib
import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from forge.views.run_state import parts_of, stage_name, words_of
from forge.views.text import NONE, finite, grouped, percent, printable, spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from matplotlib.axes import Axes

    from forge.store.reader import Params, RunReader

MOST_TABLE_ROWS = 60
"""Rows of the table beside a picture; a longer one drops rows evenly and says so."""
LONGEST_LABEL = 48
INK, GRID, PAPER = "#1f2328", "#d0d7de", "#ffffff"
SERIES = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#57606a", "#0a7a84")
"""Contrast on white of at least 4.5 : 1; lines also differ by dashes and marks."""
DASHES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
SIZE = (5.4, 3.3)
PNG_DPI = 160
FEW_POINTS = 40
"""Longest line with a mark on each point."""
SHIFT = 0.12
"""Distance of the points of two lines over the same name."""
MOST_NAMES = 12
"""Names on an axis; of more, some are left out."""

_STYLE = {
    "svg.fonttype": "none", "text.parse_math": False, "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"], "font.size": 10.5, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.6,
    "text.color": INK, "xtick.color": INK, "ytick.color": INK, "figure.facecolor": PAPER,
    "axes.facecolor": PAPER, "legend.frameon": False, "legend.fontsize": 9,
    "lines.linewidth": 1.6, "lines.markersize": 3.5,
}  # fmt: skip


Point = tuple[float, float | None, float | None, float | None]
"""x, y and the two ends of its interval; None for a missing number."""


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    rows: Sequence[Point]
    is_points: bool = False
    """True for single measurements, each with its interval."""

    @property
    def points(self) -> list[tuple[float, float, float, float]]:
        """The rows with a number; a missing end is the number itself."""
        return [
            (x, y, y if low is None else min(low, y), y if high is None else max(high, y))
            for x, y, low, high in self.rows
            if y is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture with its table. A chart without points is not drawn."""

    name: str
    """Name of its file and anchor: letters and dashes."""
    title: str
    y_label: str
    lines: tuple[Line, ...] = ()
    x_label: str = "step"
    names: tuple[str, ...] = ()
    """Names at x = 0, 1, ...; empty for numbers."""
    is_share: bool = False
    note: str = ""
    """Sentence below the picture: the meaning of the lines."""
    source: str = "steps"
    """Source of a chart by step: `steps`, `kl`, or a name of SOURCES."""
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Column to the label of its line, empty for the stage's name; none: all of the source."""
    kind: str = ""
    """Kind of the stages; empty for all."""

    @property
    def is_empty(self) -> bool:
        return not any(line.points for line in self.lines)

    @property
    def num_rows(self) -> int:
        return len({row[0] for line in self.lines for row in line.rows})

    def show(self, value: float | None) -> str:
        if value is None:
            return NONE
        return percent(value) if self.is_share else grouped(value)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows with the same numbers, at most MOST_TABLE_ROWS of them."""
        by_x: dict[float, dict[int, str]] = {}
        for index, line in enumerate(self.lines):
            for x, y, low, high in line.rows:
                cell = self.show(y)
                if low is not None:
                    cell += f" ({self.show(low)} to {self.show(high)})"
                by_x.setdefault(x, {})[index] = cell
        rows = [
            [
                self.names[int(x)] if self.names else grouped(x),
                *(cells.get(i, NONE) for i in range(len(self.lines))),
            ]
            for x, cells in sorted(by_x.items())
        ]
        return [self.x_label, *(line.label for line in self.lines)], spread(rows, MOST_TABLE_ROWS)


def make_line(text: str, points: Iterable[Sequence[Any]], *, is_points: bool = False) -> Line:
    """A line through the points, which are in order: x, y and, where known, the interval's ends."""
    rows = [(*finite(point), None, None)[:4] for point in points]
    return Line(label(text), cast("list[Point]", rows), is_points)


def label(text: object) -> str:
    """A stored text as a label: printable, short, and free of what matplotlib hides (a leading
    underscore) or XML forbids."""
    shown = "".join(
        "\ufffd" if ord(character) & 0xFFFE == 0xFFFE else character
        for character in printable(str(text)).replace("\n", "␊").replace("\t", " ")
    )
    if len(shown) > LONGEST_LABEL:
        shown = f"{shown[: LONGEST_LABEL - 1]}…"
    return f" {shown}" if shown.startswith("_") else shown


def draw_svg(chart: Chart) -> str:
    out = io.StringIO()
    with _style({"svg.hashsalt": chart.name}):
        figure = _figure(chart)
        FigureCanvasSVG(figure)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def draw_png(chart: Chart) -> bytes:
    out = io.BytesIO()
    with _style({}):
        figure = _figure(chart)
        FigureCanvasAgg(figure)
        figure.savefig(out, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return out.getvalue()


@contextmanager
def _style(more: Mapping[str, str]) -> Iterator[None]:
    """Applies our style, whatever the user's; missing glyphs render as boxes, without a warning."""
    with matplotlib.style.context(["default", {**_STYLE, **more}]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from font")
        yield


def _figure(chart: Chart) -> Figure:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    for index, line in enumerate(chart.lines):
        shift = SHIFT * (index - (len(chart.lines) - 1) / 2) if chart.names else 0.0
        _draw(axes, line, index, shift)
    _label_axes(axes, chart)
    if len(chart.lines) > 1:
        columns = 2 if len(chart.lines) > 4 else min(3, len(chart.lines))
        figure.legend(loc="outside lower center", ncols=columns)
    return figure


def _draw(axes: Axes, line: Line, index: int, shift: float) -> None:
    """A line with a band for its intervals, or points with an error bar each."""
    if not line.points:
        return
    xs, ys, lows, highs = (list(each) for each in zip(*line.points, strict=True))
    color, mark = SERIES[index % len(SERIES)], MARKS[index % len(MARKS)]
    if line.is_points:
        below = [y - low for y, low in zip(ys, lows, strict=True)]
        above = [high - y for y, high in zip(ys, highs, strict=True)]
        axes.errorbar(
            [x + shift for x in xs], ys, yerr=(below, above), label=line.label, color=color,
            marker=mark, markersize=5, linestyle="none", capsize=2.5, zorder=3,
        )  # fmt: skip
        return
    axes.plot(
        xs, ys, label=line.label, color=color, linestyle=DASHES[index % len(DASHES)],
        marker=mark if len(xs) <= FEW_POINTS else "",
    )  # fmt: skip
    if any(low is not None for _, _, low, _ in line.rows):
        axes.fill_between(xs, lows, highs, color=color, alpha=0.15, linewidth=0)


def _label_axes(axes: Axes, chart: Chart) -> None:
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.names:
        shown = list(range(0, len(chart.names), 1 + len(chart.names) // MOST_NAMES))
        turned = {"rotation": 35, "ha": "right"} if len(shown) > 5 else {}
        axes.set_xticks(shown, [chart.names[i] for i in shown], **turned)
        axes.set_xlim(-0.5, len(chart.names) - 0.5)
    elif all(row[0] == int(row[0]) for line in chart.lines for row in line.rows):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.is_share:
        highest = max((high for line in chart.lines for *_, high in line.points), default=1.0)
        axes.set_ylim(0.0, min(1.0, max(0.02, 1.1 * highest)))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: grouped(float(f"{value:.4g}")))
        )


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
CHARTS = {
    "trained": (
        Chart(name="reward", title="Reward", y_label="mean over turns",
              columns={"reward": "reward"},
              note="The band is two standard errors over the groups of a step."),
        Chart(name="pass-rate", title="Pass rate", y_label="share", is_share=True,
              columns={"pass_rate": "first turn", "pass_rate_multi": "any turn",
                       "compile_rate": "first turn compiles"}),
        Chart(name="speedup", title="Speed-up of correct kernels", y_label="times as fast",
              columns={"speedup": "mean", "best_speedup": "highest"},
              note="As measured; kernels are ranked by the lower end of the interval."),
        Chart(name="sft-loss", title="SFT loss", y_label="loss", source="metrics", kind="sft",
              columns={"train/loss/mean": ""}),
    ),
    "trained_more": (
        Chart(name="levels", title="Pass rate by level", y_label="share", source="levels",
              is_share=True),
        Chart(name="reward-terms", title="Reward terms", y_label="mean over turns", source="terms",
              note="Mean reward by term; a turn without the term counts as 0."),
        Chart(name="length", title="Length", y_label="tokens per answer",
              columns={"completion_tokens": "mean"}),
        Chart(name="waste", title="Without a signal", y_label="share", is_share=True,
              columns={"flat_share": "flat groups", "truncated_share": "truncated answers"},
              note="Flat: all siblings earned the same, so that the group teaches nothing."),
        Chart(name="kl", title="KL", y_label="nats per token", source="kl"),
        Chart(name="entropy", title="Entropy", y_label="nats per token", source="metrics",
              columns={"train/entropy/mean": "mean"}),
        Chart(name="staleness", title="Staleness", y_label="steps", source="staleness",
              note="Steps between the weights that made a sample and those it trained."),
        Chart(name="loss", title="Loss", y_label="loss", source="metrics", kind="grpo",
              columns={"train/loss/mean": ""}),
        Chart(name="sft-accuracy", title="SFT token accuracy", y_label="share", source="metrics",
              columns={"train/token_accuracy/mean": ""}, is_share=True),
        Chart(name="grad-norm", title="Gradient norm", y_label="norm", source="metrics",
              columns={"train/grad_norm/value": ""}, kind="grpo"),
        Chart(name="sft-grad-norm", title="SFT gradient norm", y_label="norm", source="metrics",
              columns={"train/grad_norm/value": ""}, kind="sft"),
    ),
    "failures": (
        Chart(name="failures", title="Failed turns by status", y_label="share of turns",
              source="failures", is_share=True),
    ),
    "timed": (
        Chart(name="idle", title="Idle share", y_label="share of the step", source="idle",
              is_share=True, note="A replica or judge is idle without a request, the trainer while "
              "it waits for a batch."),
        Chart(name="step-time", title="Seconds per step", y_label="seconds", source="parts",
              columns=STEP_PARTS),
    ),
}  # fmt: skip
"""Part of the page to its charts by step; `trained` says whether it learned."""

Points = dict[int, list[tuple[float | None, ...]]]
"""Points of a column by stage: step, value, and of a mean reward the ends of its interval."""


class Training:
    def __init__(
        self, reader: RunReader, *, stages: Sequence[Any], evaluations: Sequence[dict[str, Any]]
    ) -> None:
        steps = ask(reader, STEPS)
        self.steps = [row for row in steps if not row["is_open"]]
        self.open_steps = [row for row in steps if row["is_open"]]
        self._stages, self._evaluations = stages, evaluations
        errors = {(row["stage"], row["step"]): row["errors"] for row in ask(reader, SPREAD)}
        self._sources = {name: _read(reader, sql) for name, sql in SOURCES.items()}
        self._sources["kl"] = {
            key.removeprefix("train/kl").strip("_/").split("/")[0] or "mean": points
            for key, points in self._sources["metrics"].items()
            if key.startswith("train/kl")
        }
        self._sources["steps"] = columns = defaultdict[str, Points](dict)
        for row in self.steps:
            error = errors.get((row["stage"], row["step"]))
            for name in row.keys() - {"stage", "step"}:
                point = row["step"], row[name]
                if name == "reward" and error and row[name] is not None:
                    point += row[name] - error, row[name] + error
                columns[name].setdefault(row["stage"], []).append(point)

    def charts(self, charts: Sequence[Chart]) -> list[Chart]:
        """The charts with their lines, including empty ones."""
        return [self._with_held_out(self._with_lines(chart)) for chart in charts]

    def _with_lines(self, chart: Chart) -> Chart:
        found = self._sources[chart.source]
        columns = chart.columns or {name: name for name in found}
        stages = sorted({
            stage for name in columns for stage in found.get(name, ())
            if chart.kind in ("", self._name(stage).partition("-")[0])
        })  # fmt: skip
        lines = [
            make_line(self._label(stages, stage, words), found[name][stage])
            for stage in stages for name, words in columns.items()
            if stage in found.get(name, ())
        ]  # fmt: skip
        return replace(chart, lines=tuple(line for line in lines if line.points))

    def _with_held_out(self, chart: Chart) -> Chart:
        """The pass rate with a point for each evaluation within, before and after its stages."""
        if chart.name != "pass-rate":
            return chart
        stages = sorted({row["stage"] for row in self.steps})
        points = {stage: self._around(stage) for stage in stages}
        trained = [words_of(row)["trained"] for found in points.values() for _, row in found]
        kind = "evaluated" if any(trained) else "held-out"
        lines = list[Line]()
        for stage, found in points.items():
            if found:
                lines.append(_measured(found, self._label(stages, stage, f"{kind} problems")))
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
        return words if words and len(stages) == 1 else f"{self._name(stage)} {words}".strip()


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
BEST_AT = """
SELECT json_extract(b.value, '$.turns') AS turns, json_extract(b.value, '$.tokens') AS x,
    json_extract(b.value, '$.solved[0]') AS y, json_extract(b.value, '$.solved[1]') AS low,
    json_extract(b.value, '$.solved[2]') AS high, e.stage AS evaluation
FROM v_evaluations e, json_each(e.detail, '$.best_at') b
WHERE e.num_samples > 1 AND (e.stage, e.step, e.policy_version) IN (
    SELECT stage, step, policy_version FROM v_evaluations ORDER BY at DESC, stage LIMIT 1)
ORDER BY turns, x
"""
"""best@N of the last evaluation."""
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
        _best_chart(ask(reader, BEST_AT)),
        Chart(
            name="fast-p", title="fast_p", x_label="p, times as fast as the baseline",
            y_label="share of first turns", lines=_curves(ask(reader, FAST_P)), is_share=True,
            note="First turns of evaluations that are correct and more than p times as fast; the "
            "band is the 95 % interval over problems.",
        ),
    ]  # fmt: skip


def _best_chart(rows: Sequence[dict[str, Any]]) -> Chart:
    """best@N by tokens, a line for each number of turns."""
    for row in rows:
        row["stage"] = f"up to {row['turns']} turn{'s' if row['turns'] > 1 else ''}"
    name = rows[0]["evaluation"] if rows else ""
    return Chart(
        name="best-at", title=f"best@N of {name}", x_label="tokens generated for a problem",
        y_label="share of problems solved", lines=_curves(rows), is_share=True,
        note="Solved by the best of 1, 2, 4, ... rollouts of up to so many turns (unbiased), by "
        "the tokens that they take in the mean; the band is the 95 % interval over problems.",
    )  # fmt: skip


def evaluation_chart(evaluations: Sequence[dict[str, Any]]) -> Chart:
    """pass@1 with its interval, and the other rates, by evaluation."""
    points = list(enumerate(evaluations))
    rates = {
        "greedy": "pass_at_1_greedy", "any turn": "pass_at_1_multi", "compiles": "compile_rate",
    }  # fmt: skip
    lines = [_measured(points, "pass@1"), *_source_lines(points)]
    for name, key in rates.items():
        lines.append(make_line(name, [(x, row[key]) for x, row in points], is_points=True))
    return Chart(
        name="evaluations", title="Evaluations", x_label="evaluation",
        y_label="share of judged problems",
        names=tuple(label(row["stage"]) for row in evaluations),
        lines=tuple(line for line in lines if line.points), is_share=True,
        note="pass@1: first turns, sampled, with the 95 % interval over problems. Greedy: "
        "first turns at temperature 0. Any turn: rollouts with a correct turn. Compiles: first "
        "turns whose own kernel launched.",
    )  # fmt: skip


def _measured(points: Sequence[tuple[int, dict[str, Any]]], name: str) -> Line:
    """pass@1 of evaluations with its interval."""
    keys = ("pass_at_1", "ci_low", "ci_high")
    return make_line(name, [(x, *map(row.get, keys)) for x, row in points], is_points=True)


def _source_lines(points: Sequence[tuple[int, dict[str, Any]]], prefix: str = "") -> list[Line]:
    """pass@1 of each of several sources, by evaluation."""
    by_source: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for x, row in points:
        for name, part in parts_of(row).items():
            by_source[name].append((x, part.get("")))
    by_source.pop("", None)
    return [make_line(f"{prefix}{name}", of, is_points=True) for name, of in by_source.items()]


def _curves(rows: Sequence[dict[str, Any]]) -> tuple[Line, ...]:
    """A line for each evaluation with several points; of many, MOST_CURVES of them."""
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_name[row["stage"]].append(row)
    lines = list[Line]()
    for name in spread(list(by_name), MOST_CURVES):
        points = [(row["x"], row["y"], row["low"], row["high"]) for row in by_name[name]]
        if len(points) > 1:
            lines.append(make_line(name, points))
    return tuple(lines)
