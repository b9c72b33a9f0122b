"""Curves by step: a sparkline each in a small terminal, otherwise a plot each."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from rich.text import Text
from textual.containers import Horizontal, Vertical
from textual.widgets import Sparkline, Static
from textual_plotext import PlotextPlot

from forge.views.text.numbers import NONE, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from forge.views.run.monitor import Curve

MAX_CURVES = 7
NUM_TICKS = 4
POINTS_PER_COLUMN = 2
"""Resolution of braille; more points would cost time without being visible."""


class CurveBox(Vertical):
    """One curve."""

    def __init__(self) -> None:
        super().__init__()
        self._curve: Curve | None = None

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static(classes="figures", markup=False)
            yield Sparkline([], summary_function=fmean)
            yield Static(classes="range", markup=False)
        yield PlotextPlot()

    def show_curve(self, curve: Curve | None) -> None:
        """Shows a curve unless it is shown already; None hides the box."""
        self.display = curve is not None
        if curve is None or curve == self._curve:
            return
        self._curve = curve
        last = curve.values[-1] if curve.values else None
        self.query_one(".figures", Static).update(Text(f"{curve.name:<14}{number(last):>9}"))
        sparkline = self.query_one(Sparkline)
        sparkline.visible = bool(curve.values)
        sparkline.data = list(curve.values)
        self.query_one(".range", Static).update(Text(_range(curve)))
        self._plot(curve, last)

    def _plot(self, curve: Curve, last: float | None) -> None:
        widget = self.query_one(PlotextPlot)
        thin = curve.thin(max(widget.size.width, 40) * POINTS_PER_COLUMN)
        plot = widget.plt
        plot.clear_data()
        plot.title(f"{curve.name}: {number(last)}")
        if thin.values:
            plot.plot(list(thin.steps), list(thin.values), marker="braille")
            plot.xticks(_ticks(thin.steps))
        widget.refresh()


class CurveGrid(Vertical):
    """All curves of a stage: in one column, or in up to four."""

    def compose(self) -> ComposeResult:
        yield Static("", id="of", markup=False)
        with Vertical(id="boxes"):
            for _ in range(MAX_CURVES):
                yield CurveBox()

    def show_curves(self, words: str, curves: Sequence[Curve]) -> None:
        """Shows the curves under the heading `words`."""
        self.query_one("#of", Static).update(Text(words, style="bold"))
        boxes = list(self.query(CurveBox))
        for number_, box in enumerate(boxes):
            box.show_curve(curves[number_] if number_ < len(curves) else None)


def _range(curve: Curve) -> str:
    if not curve.values:
        return NONE
    return f"{number(min(curve.values))} … {number(max(curve.values))}"


def _ticks(steps: Sequence[int]) -> list[float]:
    """A selection of the steps; plotext's own ticks would be fractions."""
    every = max(len(steps) // NUM_TICKS, 1)
    return list(steps[::every])
