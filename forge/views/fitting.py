"""Query results on a terminal of any width: a table while its columns stay readable, else a block
per row with a line per column, like `\\x` in psql.

Used by views that do not know their columns. Texts are made printable.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from forge.views.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType

SHORT, LONG = 14, 40
"""Minimum width of a folded cell: for a name, and for a text of several lines."""
WIDE_GAP, NARROW_GAP = 3, 2
"""Spaces between columns, with and without a rule."""


class Fitting:
    def __init__(
        self,
        columns: Iterable[str],
        rows: Iterable[Sequence[Any]],
        *,
        expendable: Sequence[str] = (),
    ) -> None:
        """`expendable` columns are left out, one after the other, where not all have room."""
        self._columns, self._rows = [printable(column) for column in columns], list(rows)
        self._expendable = expendable

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        rows = [[cell(value) for value in row] for row in self._rows]
        for num in range(len(self._expendable) + 1):
            kept = [i for i, name in enumerate(self._columns) if name not in self._expendable[:num]]
            columns, *cells = ([row[i] for i in kept] for row in (self._columns, *rows))
            widths = [_longest(column) for column in zip(columns, *cells, strict=True)]
            if sum(widths) + WIDE_GAP * (len(widths) - 1) + 2 <= options.max_width:
                yield _fill(RichTable(show_edge=False, header_style="bold"), columns, cells)
                return
        shorter = [[_shorter(value) for value in row] for row in self._rows]
        least = [_readable(*column) for column in zip(self._columns, *shorter, strict=True)]
        if sum(least) + NARROW_GAP * (len(least) - 1) > options.max_width:
            yield from self._blocks(rows)
            return
        table = RichTable(
            box=SIMPLE_HEAD, show_edge=False, header_style="bold", padding=(0, 1, 0, 0),
            pad_edge=False,
        )  # fmt: skip
        heads = [_fold(*each) for each in zip(self._columns, least, strict=True)]
        yield _fill(table, heads, shorter, least=least)

    def _blocks(self, rows: Sequence[Sequence[str]]) -> Iterator[RenderableType]:
        """Empty values are omitted."""
        for number, row in enumerate(rows, start=1):
            yield Text(f"─ row {number}", style="bold")
            block = RichTable.grid(padding=(0, 2, 0, 0))
            block.add_column(style="cyan", no_wrap=True)
            block.add_column(overflow="fold")
            for column, value in zip(self._columns, row, strict=True):
                if value:
                    block.add_row(Text(column), Text(value))
            yield block


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return printable(str(value))


def _shorter(value: Any) -> str:
    is_short = isinstance(value, float) and abs(value) < 1e6
    return f"{value:.4g}" if is_short else cell(value)


def _fill(
    table: RichTable,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    least: Sequence[int] = (),
) -> RichTable:
    for index, head in enumerate(heads):
        table.add_column(Text(head), overflow="fold", min_width=least[index] if least else None)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _longest(texts: Sequence[str]) -> int:
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _readable(column: str, *cells: str) -> int:
    """Minimum width of a column: its name folds between words, long cells anywhere."""
    longest = _longest(cells)
    words = _longest([word.rstrip() for word in _words(column)])
    return max(words, min(longest, SHORT if longest <= SHORT * 4 else LONG))


def _fold(column: str, width: int) -> str:
    """A column name in lines of at most `width` characters."""
    lines = [""]
    for word in _words(column):
        if lines[-1] and len(lines[-1] + word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def _words(column: str) -> list[str]:
    """`pass_at_1` as `pass_`, `at_`, `1`."""
    return re.findall(r"[^_ ]+[_ ]*|[_ ]+", column)
