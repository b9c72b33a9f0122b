"""Charts as SVG and PNG, by matplotlib. Imported only when a report is made: it takes 0.3 s.

Guarantees: equal charts give equal bytes (fixed hash salt, no date); the user's matplotlibrc has no
effect; a label is text, never a formula. Colours of the SVG are the keys of `INK` and `SERIES`, so
that a page can substitute its own.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from forge.views.report.charts import Chart, Kind, Line
from forge.views.text.numbers import grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from matplotlib.axes import Axes

INK, GRID, PAPER = "#1f2328", "#d0d7de", "#ffffff"
SERIES = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#57606a", "#0a7a84")
"""Contrast on white of at least 4.5 : 1; lines also differ by dashes and marks."""
DASHES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "//", "\\\\", "--", "||", "++", "xx", "/")
SIZE = (5.4, 3.3)
PNG_DPI = 160
FEW_POINTS = 40
"""Longest line with a mark on each point."""

_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.color": PAPER,
    "hatch.linewidth": 0.6,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
}


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
    {Kind.LINES: _lines, Kind.STACK: _stack, Kind.DOTS: _dots, Kind.BARS: _bars}[chart.kind](
        axes, chart
    )
    if len(chart.lines) > 1 and chart.kind is not Kind.BARS:
        columns = 2 if len(chart.lines) > 4 else min(3, len(chart.lines))
        figure.legend(loc="outside lower center", ncols=columns)
    return figure


def _lines(axes: Axes, chart: Chart) -> None:
    for index, line in enumerate(chart.lines):
        color = SERIES[index % len(SERIES)]
        points = line.points
        if line.is_points:
            _error_bars(axes, line, index)
            continue
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            label=line.label,
            color=color,
            linestyle=DASHES[index % len(DASHES)],
            marker=MARKS[index % len(MARKS)] if len(points) <= FEW_POINTS else "",
        )
        _band(axes, line, color)
    _label(axes, chart)


def _band(axes: Axes, line: Line, color: str) -> None:
    ends = [
        (x, low, high)
        for x, low, high in zip(line.x, line.low, line.high, strict=False)
        if low is not None and high is not None
    ]
    if ends:
        xs, lows, highs = zip(*ends, strict=True)
        axes.fill_between(xs, lows, highs, color=color, alpha=0.15, linewidth=0)


def _stack(axes: Axes, chart: Chart) -> None:
    areas = axes.stackplot(
        chart.lines[0].x,
        [[value or 0.0 for value in line.y] for line in chart.lines],
        labels=[line.label for line in chart.lines],
        colors=[SERIES[i % len(SERIES)] for i in range(len(chart.lines))],
    )
    for index, area in enumerate(areas):
        area.set_hatch(HATCHES[index % len(HATCHES)])
        area.set_edgecolor(PAPER)
        area.set_linewidth(0.4)
    axes.margins(x=0)
    _label(axes, chart)


def _error_bars(axes: Axes, line: Line, index: int, *, shift: float = 0.0) -> None:
    """A mark with its interval for each point of the line."""
    points = [
        (x + shift, y, max(y - (low if low is not None else y), 0.0),
         max((high if high is not None else y) - y, 0.0))
        for x, y, low, high in zip(
            line.x, line.y, line.low or line.y, line.high or line.y, strict=True
        )
        if y is not None
    ]  # fmt: skip
    if not points:
        return
    xs, ys, below, above = zip(*points, strict=True)
    axes.errorbar(
        xs, ys, yerr=(below, above), label=line.label, color=SERIES[index % len(SERIES)],
        marker=MARKS[index % len(MARKS)], markersize=5, linestyle="none", capsize=2.5,
        zorder=3,
    )  # fmt: skip


def _dots(axes: Axes, chart: Chart) -> None:
    for index, line in enumerate(chart.lines):
        _error_bars(axes, line, index, shift=0.12 * (index - (len(chart.lines) - 1) / 2))
    step = 1 + len(chart.names) // 12
    shown = list(range(0, len(chart.names), step))
    is_wide = len(shown) > 5
    axes.set_xticks(
        shown, [chart.names[i] for i in shown], rotation=35 if is_wide else 0,
        ha="right" if is_wide else "center",
    )  # fmt: skip
    axes.set_xlim(-0.5, len(chart.names) - 0.5)
    _label(axes, chart)


def _bars(axes: Axes, chart: Chart) -> None:
    line = chart.lines[0]
    values = [value or 0.0 for value in line.y]
    bars = axes.barh(range(len(values)), values, color=SERIES[0])
    axes.bar_label(bars, labels=[chart.show(value) for value in values], padding=3, fontsize=9)
    axes.set_yticks(range(len(values)), list(chart.names))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(chart.y_label)
    if chart.is_share:
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlim(0, 1.15 * _top_share(chart))


def _label(axes: Axes, chart: Chart) -> None:
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if not chart.names and all(x == int(x) for line in chart.lines for x in line.x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.is_share:
        axes.set_ylim(0.0, _top_share(chart))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(_tick))


def _top_share(chart: Chart) -> float:
    """Upper limit of an axis of shares: just above the highest value instead of 100 %."""
    if chart.kind is Kind.STACK:
        return 1.0
    ends = [end for line in chart.lines for end in (*line.y, *line.high) if end is not None]
    return min(1.0, max(0.02, 1.1 * max(ends, default=1.0)))


def _tick(value: Any, _: Any) -> str:
    return grouped(float(f"{value:.4g}"))


SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_KEPT = frozenset(("svg", "g", "defs", "path", "use", "text", "clipPath", "rect", "pattern"))
"""Elements of a drawing; the rest (metadata, style) is dropped."""
_FONT = re.compile(r"font(?:-size)?: ?(?:[\d.]+px )?'DejaVu Sans'[^;]*;?|font-family:[^;]*;?")
_URL = re.compile(r"url\(#([^)]+)\)")


def inline_svg(
    document: str, *, name: str, title: str, description: str, colors: Mapping[str, str]
) -> str:
    """The `<svg>` element for a page.

    Args:
        name: prefix of every id in it, since a page has several pictures.
        colors: colour of the document to its replacement, such as `var(--ink)`.
    """
    root = ET.fromstring(document)
    _strip(root)
    for element in root.iter():
        _adopt(element, name, colors)
    for key in ("width", "height", "version", "id"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-words")
    words = ET.Element(f"{{{SVG}}}desc", {"id": f"{name}-words"})
    words.text = description
    head = ET.Element(f"{{{SVG}}}title", {"id": f"{name}-title"})
    head.text = title
    root[:0] = [head, words]
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return ET.tostring(root, encoding="unicode", short_empty_elements=False)


def _strip(parent: ET.Element) -> None:
    for child in list(parent):
        if child.tag.rpartition("}")[2] in _KEPT:
            _strip(child)
        else:
            parent.remove(child)


def _adopt(element: ET.Element, name: str, colors: Mapping[str, str]) -> None:
    attributes = element.attrib
    if "id" in attributes:
        attributes["id"] = f"{name}-{attributes['id']}"
    if (link := attributes.pop(_HREF, "")).startswith("#"):
        attributes["href"] = f"#{name}-{link[1:]}"
    for key in ("clip-path", "style", "fill", "stroke"):
        if key in attributes:
            value = _URL.sub(rf"url(#{name}-\1)", attributes[key])
            attributes[key] = re.sub(
                r"#[0-9a-f]{6}\b", lambda match: colors.get(match[0], match[0]), value
            )
    if "style" in attributes:
        attributes["style"] = _FONT.sub(_keep_size, attributes["style"]).strip()


def _keep_size(match: re.Match[str]) -> str:
    """Drops the font, which is the page's, and keeps the size."""
    size = re.search(r"[\d.]+px", match[0])
    return f"font-size: {size[0]};" if size else ""
