"""The processes of a running run as a table: `forge status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from forge.views.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.control.records import ComponentStatus

MARKS = {"green": "●", "yellow": "▲", "red": "✖"}
"""Told apart without colour too."""


def render(components: Sequence[ComponentStatus]) -> Table:
    """One row each; what decides on its health beside its mark."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    has_cards = any(one.gpu_use is not None or one.gpu_memory_bytes for one in components)
    names = ["", "process", "device", "phase", "memory", *(["GPU"] if has_cards else [])]
    for name in (*names, "age", "restarts", "why, or its last words"):
        is_last = name.startswith("why")
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=1 if is_last else None)
    for one in components:
        cells = [one.name, one.device, one.phase, _gigabytes(one.memory_bytes)]
        cells += [_card(one)] if has_cards else []
        cells += [_age(one.progress_age_s), str(one.num_restarts), one.why or one.last_words]
        mark = Text(MARKS[one.health], style=one.health)
        table.add_row(mark, *(Text(printable(cell)) for cell in cells))
    return table


def _gigabytes(num_bytes: int | None) -> str:
    return "–" if num_bytes is None else f"{num_bytes / 1e9:.1f} GB"


def _card(one: ComponentStatus) -> str:
    use = "–" if one.gpu_use is None else f"{one.gpu_use:.0%}"
    return f"{use} {_gigabytes(one.gpu_memory_bytes)}"


def _age(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f} s"
