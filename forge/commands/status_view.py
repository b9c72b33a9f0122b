"""The processes of a running run as a table: `forge status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.control.records import ComponentStatus

MARKS = {"green": "●", "yellow": "▲", "red": "✖"}
"""Told apart without colour too."""


def render(components: Sequence[ComponentStatus]) -> Table:
    """One row each; what decides on its health beside its mark."""
    has_cards = any(one.gpu_use is not None or one.gpu_memory_bytes for one in components)
    names = ["process", "device", "phase", "memory", *(["GPU"] if has_cards else [])]
    names += ["age", "restarts", "why, or last words"]
    rows = [[printable(cell) for cell in _cells(one, has_cards)] for one in components]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in names:
        table.add_column(name, no_wrap=name != names[-1])  # the last gives way in a narrow terminal
    for one, row in zip(components, rows, strict=True):
        mark = Text(MARKS[one.health], style=one.health)
        table.add_row(mark, *(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    return table


def _cells(one: ComponentStatus, has_cards: bool) -> list[str]:
    cells = [one.name, one.device, one.phase, _gigabytes(one.memory_bytes)]
    cells += [_card(one)] if has_cards else []
    return [*cells, _age(one.progress_age_s), str(one.num_restarts), one.why or one.last_words]


def _gigabytes(num_bytes: int | None) -> str:
    return "–" if num_bytes is None else f"{num_bytes / 1e9:.1f} GB"


def _card(one: ComponentStatus) -> str:
    use = "–" if one.gpu_use is None else f"{one.gpu_use:.0%}"
    return f"{use} {_gigabytes(one.gpu_memory_bytes)}"


def _age(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f} s"
