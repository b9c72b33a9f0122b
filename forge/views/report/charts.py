"""Charts as data: `draw` makes the picture; text and table repeat its content.

Pure. A chart without points is not drawn; the report names it as missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import TypeVar

from forge.views.text.numbers import NONE, finite, grouped, percent

Row = TypeVar("Row")

MOST_POINTS = 400
"""Points of a line: more than the picture has pixels for."""
MOST_TABLE_ROWS = 60
"""Rows of the table beside a picture; a longer one drops rows evenly and says so."""


class Kind(StrEnum):
    """Type of drawing."""

    LINES = "lines"
    """Lines over numbers, with a band for intervals."""
    STACK = "stack"
    """Stacked areas by step."""
    DOTS = "dots"
    """A dot with its interval for each name on the x axis."""
    BARS = "bars"
    """A horizontal bar for each name, longest first."""


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
    """True for single measurements with intervals on top of a drawing of lines."""
    num_together: int = 1
    """Neighbouring points that were merged into one."""

    @property
    def points(self) -> list[tuple[float, float]]:
        """Points with a number."""
        return [(x, y) for x, y in zip(self.x, self.y, strict=True) if y is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture with its text and table."""

    name: str
    """Name of its file and anchor: letters and dashes."""
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    kind: Kind = Kind.LINES
    names: tuple[str, ...] = ()
    """Names at x = 0, 1, ... of DOTS and BARS."""
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
        return " ".join(part for part in (self.note, coarse) if part)

    @property
    def num_rows(self) -> int:
        """Rows of the full table."""
        return len({x for line in self.lines for x in line.x})

    def describe(self) -> str:
        """The picture in words, for screen readers."""
        lines = [self._describe_line(line) for line in self.lines if line.points]
        return f"{self.title}: {self.y_label} by {self.x_label}. {' '.join(lines)}"

    def _describe_line(self, line: Line) -> str:
        (first_x, first), (last_x, last) = line.points[0], line.points[-1]
        if self.kind in (Kind.DOTS, Kind.BARS):
            named = (f"{self.names[int(x)]} {self.show(y)}" for x, y in line.points[:20])
            return f"{line.label}: {', '.join(named)}."
        top_x, top = max(line.points, key=lambda point: point[1])
        return (
            f"{line.label}: {self.show(first)} at {grouped(first_x)}, "
            f"{self.show(last)} at {grouped(last_x)}, highest {self.show(top)} at {grouped(top_x)}."
        )

    def show(self, value: float | None) -> str:
        """A value as the table shows it."""
        if value is None:
            return NONE
        return percent(value) if self.is_share else grouped(value)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows with the same numbers, at most MOST_TABLE_ROWS of them."""
        head = [self.x_label, *(line.label for line in self.lines)]
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
            for x, cells in (by_x.items() if self.names else sorted(by_x.items()))
        ]
        return head, spread(rows, MOST_TABLE_ROWS)


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
    size = math.ceil(len(points) / MOST_POINTS)
    if size <= 1:
        return Line(label=label, x=[x for x, _ in points], y=[finite(y) for _, y in points])
    bins = [points[i : i + size] for i in range(0, len(points), size)]
    kept = [[y for _, each in part if (y := finite(each)) is not None] for part in bins]
    return Line(
        label=label, x=[part[-1][0] for part in bins],
        y=[reduce(ys) if ys else None for ys in kept], num_together=size,
    )  # fmt: skip
