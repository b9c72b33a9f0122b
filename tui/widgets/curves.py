"""Curves by step: a sparkline each in a small terminal, otherwise a plot each."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from rich.text import Text
from textual.containers import Horizontal, Vertical
from textual.widgets import Sparkline, Static
from textual_plotext import PlotextPlot

from forge.views.text.numbers import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from forge.views.curves import Curve

MAX_CURVES = 8
MOST_TICKS, TICK_COLUMNS = 5, 14
"""Labels on the axis of steps: at most, and columns for each."""
PLOT_COLUMNS = 28
"""Minimum width of a plot."""
MOST_IN_A_ROW = 4
SHORTEST, TALLEST = 8, 18
"""Lines of a plot."""
POINTS_PER_COLUMN = 2
"""Resolution of braille; more points would cost time without being visible."""


class CurveBox(Vertical):
    """One curve."""

    def __init__(self) -> None:
        super().__init__()
        self._curve: tuple[Curve, int] | None = None

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static(classes="figures", markup=False)
            yield Sparkline([], summary_function=fmean)
            yield Static(classes="range", markup=False)
        yield PlotextPlot()

    def show_curve(self, curve: Curve | None, *, columns: int) -> None:
        """Shows a curve unless it is shown already; None hides the box."""
        self.display = curve is not None
        if curve is None or (curve, columns) == self._curve:
            return
        self._curve = curve, columns
        last = curve.shown[-1]
        figures = Text(f"{curve.name:<14}", style="dim")
        figures.append(f"{number(last):>9}", style="not dim bold")
        self.query_one(".figures", Static).update(figures)
        self.query_one(Sparkline).data = list(curve.shown)
        self.query_one(".range", Static).update(Text(_range(curve), style="dim"))
        self._plot(curve, last, columns)

    def _plot(self, curve: Curve, last: float, columns: int) -> None:
        widget = self.query_one(PlotextPlot)
        thin = curve.thin(columns * POINTS_PER_COLUMN)
        plot = widget.plt
        plot.clear_data()
        plot.title(f"{curve.name} {number(last)} {curve.unit}".rstrip())
        plot.plot(list(thin.steps), list(thin.shown), marker="braille")
        plot.xticks(_ticks(thin.steps, max(2, min(MOST_TICKS, columns // TICK_COLUMNS))))
        heights = _heights(min(thin.shown), max(thin.shown))
        plot.yticks(heights, [number(each) for each in heights])
        widget.refresh()


class CurveGrid(Vertical):
    """All curves that have points: one line each, or plots that share the room."""

    def __init__(self) -> None:
        super().__init__()
        self._plots: tuple[int, int] | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="of", markup=False)
        with Vertical(id="boxes"):
            for _ in range(MAX_CURVES):
                yield CurveBox()

    def show_curves(
        self, words: str, curves: Sequence[Curve], *, room: tuple[int, int] | None
    ) -> None:
        """Shows the curves under the heading `words`.

        Args:
            room: columns and lines for plots; None for a line each.
        """
        found = [curve for curve in curves if curve.values][:MAX_CURVES]
        self.query_one("#of", Static).update(Text(words, style="bold"))
        columns = self._arrange(len(found), room)
        for number_, box in enumerate(self.query(CurveBox)):
            box.show_curve(found[number_] if number_ < len(found) else None, columns=columns)

    def _arrange(self, num: int, room: tuple[int, int] | None) -> int:
        """Sets columns and heights of the plots; returns the width of one."""
        if room is None or not num:
            self.set_class(False, "-plots")
            return PLOT_COLUMNS
        width, height = room
        most = max(1, min(MOST_IN_A_ROW, width // PLOT_COLUMNS))
        num_rows = -(-num // most)
        across = -(-num // num_rows)
        lines = max(SHORTEST, min(TALLEST, height // num_rows))
        if (across, lines) != self._plots:
            self._plots = across, lines
            self.query_one("#boxes").styles.grid_size_columns = across
            for plot in self.query(PlotextPlot):
                plot.styles.height = lines
        self.set_class(True, "-plots")
        return width // across


def _range(curve: Curve) -> str:
    low, high = number(min(curve.shown)), number(max(curve.shown))
    return f"{low} … {high} {curve.unit}".rstrip()


def _heights(low: float, high: float) -> list[float]:
    """Up to three labelled values: the ends and their middle."""
    return [low] if low == high else [low, (low + high) / 2, high]


def _ticks(steps: Sequence[int], num: int) -> list[float]:
    """Up to `num` of the steps, with the first and the last; plotext's own would be fractions."""
    if len(steps) <= num:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (num - 1))] for i in range(num)]
