"""Charts: their data, a table with the same numbers, and drawings as SVG and PNG by matplotlib.

Equal charts give equal bytes (fixed hash salt, no date); the user's matplotlibrc has no effect; a
label is text, never a formula. Imported only when a report is made: matplotlib takes 0.3 s.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib
import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from forge.views.text.numbers import NONE, finite, grouped, percent
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from matplotlib.axes import Axes

Row = TypeVar("Row")

MOST_POINTS = 400
"""Points of a line: more than the picture has pixels for."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series. Lists have the length of `x`; None is a missing number."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    """Lower ends of the intervals, or empty."""
    high: Sequence[float | None] = ()
    is_points: bool = False
    """True for single measurements, each with its interval."""
    num_together: int = 1
    """Neighbouring points that were merged into one."""

    @property
    def points(self) -> list[tuple[float, float]]:
        """Points with a number."""
        return [(x, y) for x, y in zip(self.x, self.y, strict=True) if y is not None]

    @property
    def bounded(self) -> list[tuple[float, float, float, float]]:
        """The same with their intervals: (x, y, low, high); a missing end is the number itself."""
        rows = zip(self.x, self.y, self.low or self.y, self.high or self.y, strict=True)
        return [
            (x, y, y if low is None else min(low, y), y if high is None else max(high, y))
            for x, y, low, high in rows
            if y is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture with its table. A chart without points is not drawn."""

    name: str
    """Name of its file and anchor: letters and dashes."""
    title: str
    y_label: str
    lines: tuple[Line, ...]
    x_label: str = "step"
    names: tuple[str, ...] = ()
    """Names at x = 0, 1, ...; empty for numbers."""
    is_share: bool = False
    """Values of 0 to 1, shown as percentages."""
    note: str = ""
    """Sentence below the picture: the meaning of the lines."""

    @property
    def is_empty(self) -> bool:
        """True if no line has a number."""
        return not any(line.points for line in self.lines)

    @property
    def caption(self) -> str:
        """The note, and how many steps a point merges."""
        size = max(line.num_together for line in self.lines)
        coarse = f"A point stands for {size} steps: their mean, or the highest." if size > 1 else ""
        return " ".join(filter(None, (self.note, coarse)))

    @property
    def num_rows(self) -> int:
        """Rows of the full table."""
        return len({x for line in self.lines for x in line.x})

    def show(self, value: float | None) -> str:
        """A value as the table shows it."""
        if value is None:
            return NONE
        return percent(value) if self.is_share else grouped(value)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows with the same numbers, at most MOST_TABLE_ROWS of them."""
        by_x: dict[float, dict[int, str]] = {}
        for index, line in enumerate(self.lines):
            for place, x in enumerate(line.x):
                cell = self.show(line.y[place])
                if line.low and line.low[place] is not None:
                    cell += f" ({self.show(line.low[place])} to {self.show(line.high[place])})"
                by_x.setdefault(x, {})[index] = cell
        rows = [
            [
                self.names[int(x)] if self.names else grouped(x),
                *(cells.get(i, NONE) for i in range(len(self.lines))),
            ]
            for x, cells in sorted(by_x.items())
        ]
        return [self.x_label, *(line.label for line in self.lines)], spread(rows, MOST_TABLE_ROWS)


def spread(rows: list[Row], most: int) -> list[Row]:
    """At most `most` rows, spread evenly, including the first and the last."""
    if len(rows) <= most:
        return rows
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def make_line(
    label: str,
    points: Sequence[tuple[float, float | None]],
    *,
    reduce: Callable[[Sequence[float]], float] = fmean,
) -> Line:
    """A line through the points, which are in order. Beyond MOST_POINTS, neighbours are merged by
    `reduce` (default: the mean) at the x of the last one.
    """
    size = max(1, math.ceil(len(points) / MOST_POINTS))
    bins = [points[i : i + size] for i in range(0, len(points), size)]
    kept = [[y for _, each in part if (y := finite(each)) is not None] for part in bins]
    return Line(
        label=label, x=[part[-1][0] for part in bins],
        y=[reduce(ys) if ys else None for ys in kept], num_together=size,
    )  # fmt: skip


def label(text: object) -> str:
    """A stored text as a label: printable, short, and free of what matplotlib hides (a leading
    underscore) or XML forbids.
    """
    shown = "".join(
        "\ufffd" if ord(character) & 0xFFFE == 0xFFFE else character
        for character in printable(str(text)).replace("\n", "␊").replace("\t", " ")
    )
    if len(shown) > LONGEST_LABEL:
        shown = f"{shown[: LONGEST_LABEL - 1]}…"
    return f" {shown}" if shown.startswith("_") else shown


def draw_svg(chart: Chart) -> str:
    """The chart as an SVG document."""
    out = io.StringIO()
    with _style({"svg.hashsalt": chart.name}):
        figure = _figure(chart)
        FigureCanvasSVG(figure)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def draw_png(chart: Chart) -> bytes:
    """The chart as a PNG file."""
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
    xs, ys, lows, highs = (list(each) for each in zip(*line.bounded, strict=True))
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
    if line.low:
        axes.fill_between(xs, lows, highs, color=color, alpha=0.15, linewidth=0)


def _label_axes(axes: Axes, chart: Chart) -> None:
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.names:
        shown = list(range(0, len(chart.names), 1 + len(chart.names) // MOST_NAMES))
        turned = {"rotation": 35, "ha": "right"} if len(shown) > 5 else {}
        axes.set_xticks(shown, [chart.names[i] for i in shown], **turned)
        axes.set_xlim(-0.5, len(chart.names) - 0.5)
    elif all(x == int(x) for line in chart.lines for x in line.x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.is_share:
        ends = [end for line in chart.lines for end in (*line.y, *line.high) if end is not None]
        axes.set_ylim(0.0, min(1.0, max(0.02, 1.1 * max(ends, default=1.0))))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(_tick))


def _tick(value: Any, _: Any) -> str:
    return grouped(float(f"{value:.4g}"))
