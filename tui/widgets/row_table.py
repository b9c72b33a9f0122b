"""A table with keyed rows: it keeps the cursor on its row when rows change, rewrites only changed
cells, and shows as many columns as fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

from rich.text import Text
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from forge.tui.widgets.texts import cell
from forge.views.text import NONE

Row = TypeVar("Row")


def plain(value: Any) -> str:
    """A dash for a missing value and for an empty text."""
    return NONE if value in (None, "") else str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. Values need not be printable."""

    key: str
    heading: str
    field: str | None
    """Field of a row, which is a mapping; None for the whole row."""
    show: Callable[[Any], str] = plain
    _: KW_ONLY
    from_width: int = 0
    """Minimum width of the table, in terminal columns, to show this column."""
    is_number: bool = False
    takes_rest: bool = False
    """Takes the remaining width; at most one column."""
    style: Callable[[Any], str] = lambda _: ""

    def cell(self, row: Any) -> Text:
        value = row if self.field is None else row[self.field]
        return cell(self.show(value), style=self.style(row))


MIN_REST = 12
MAX_COLUMN = 40
"""Maximum width of the other columns, so that one long word cannot fill the table."""
SCROLLBAR = 2


class RowTable(DataTable["Text"]):
    """Rows of one kind. `show_rows` may be called any number of times."""

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:
        super().__init__(cursor_type="row", cell_padding=0, zebra_stripes=True, id=id)
        self.columns_shown: Sequence[Column] = columns
        self._given: tuple[Sequence[tuple[str, Any]], str | None] = ((), None)
        self._given_width = 0
        self._shape: Any = None
        self._keys: list[str] = []
        self._cells: list[list[Text]] = []

    @property
    def chosen(self) -> str | None:
        return self._keys[self.cursor_row] if 0 <= self.cursor_row < len(self._keys) else None

    def show_rows(self, rows: Sequence[tuple[str, Row]], *, marked: str | None = None) -> None:
        """Shows rows of (key, row). `marked` names a column whose heading gets a mark."""
        self._given = rows, marked
        self._given_width = width = self._room
        columns = [column for column in self.columns_shown if column.from_width <= width]
        headings = [f"{'▾' if c.key == marked else ''}{c.heading}" for c in columns]
        cells = [[cell(heading) for heading in headings]]
        cells += [[column.cell(row) for column in columns] for _, row in rows]
        widths = _widths(columns, cells, width=width)
        for line in cells:
            for column, text, wide in zip(columns, line, widths, strict=True):
                if column.is_number:
                    text.pad_left(max(0, wide - 1 - text.cell_len))
        self._show(columns, widths, [key for key, _ in rows], cells)

    @property
    def _room(self) -> int:
        """Width including a scrollbar, so that a scrollbar that appears changes nothing."""
        return self.outer_size.width or self.app.size.width

    def on_resize(self) -> None:
        if self._given_width not in (0, self._room):
            rows, marked = self._given
            self.show_rows(rows, marked=marked)

    def choose(self, key: str) -> None:
        if key in self._keys:
            self.move_cursor(row=self._keys.index(key))

    def _show(
        self, columns: list[Column], widths: list[int], keys: list[str], cells: list[list[Text]]
    ) -> None:
        shape = (tuple(c.key for c in columns), tuple(widths), tuple(keys), tuple(cells[0]))
        if shape == self._shape:
            self._rewrite(cells[1:])
        else:
            chosen, at, top = self.chosen, self.cursor_row, self.scroll_y
            self.clear(columns=True)
            self._shape, self._keys, self._cells = shape, keys, cells[1:]
            for column, heading, width in zip(columns, cells[0], widths, strict=True):
                self.add_column(heading, key=column.key, width=width)
            for key, row in zip(keys, cells[1:], strict=True):
                self.add_row(*row, key=key)
            if keys:
                at = keys.index(chosen) if chosen in keys else min(at, len(keys) - 1)
                self.move_cursor(row=at)
                self.scroll_to(y=top, animate=False)

    def _rewrite(self, cells: list[list[Text]]) -> None:
        for y, (old, new) in enumerate(zip(self._cells, cells, strict=True)):
            for x, (before, after) in enumerate(zip(old, new, strict=True)):
                if before != after:
                    self.update_cell_at(Coordinate(y, x), after)
        self._cells = cells


def _widths(columns: list[Column], cells: list[list[Text]], *, width: int) -> list[int]:
    """Width of each column plus a blank; the column that takes the rest gets as much of it as it
    needs."""
    widths = [
        1 + min(max(line[i].cell_len for line in cells), width if c.takes_rest else MAX_COLUMN)
        for i, c in enumerate(columns)
    ]
    for i, column in enumerate(columns):
        if column.takes_rest:
            rest = width - SCROLLBAR - sum(widths) + widths[i]
            widths[i] = max(MIN_REST, min(widths[i], rest))
    return widths
