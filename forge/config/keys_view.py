"""Output of `forge keys` on a terminal: one block per `[table]`."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from forge.config.keys import Key


def render(keys: list[Key]) -> RenderableType:
    """One block per table, in the order of the schema."""
    parts: list[RenderableType] = []
    for name, members in groupby(keys, key=lambda key: key.table):
        title = f"[{name}]" if name else "top of the file"
        title = f"[[stage]] {name.removeprefix('stage ')}" if name.startswith("stage ") else title
        # Names stay whole, since people copy them; the other columns fold.
        others = (Column(head, overflow="fold") for head in ("type", "default", "unit", ""))
        table = Table(Column("key", no_wrap=True), *others, box=None, pad_edge=False)
        for key in members:
            table.add_row(
                *(Text(cell) for cell in (key.name, key.type, key.default, key.unit, key.doc))
            )
        parts += [Text(title, style="bold"), table, Text()]
    return Group(*parts[:-1])
