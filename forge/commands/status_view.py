"""Table of a run's processes for `forge status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from forge.views.text.numbers import NONE, gigabytes, minutes, number, share
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.control.records import ComponentStatus, LiveStatus

MARKS = {"green": "●", "yellow": "▲", "red": "✖"}
"""Marks by health; distinct without colour too."""


def render(components: Sequence[ComponentStatus]) -> Table:
    """One row per process, with a mark for its health and the reason for it."""
    has_cards = any(one.gpu_use is not None or one.gpu_memory_bytes for one in components)
    names = ["process", "device", "phase", "memory", *(["GPU"] if has_cards else [])]
    names += ["age", "restarts", "reason, or last line"]
    rows = [[printable(cell) for cell in _cells(one, has_cards)] for one in components]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in names:
        table.add_column(
            name, no_wrap=name != names[-1]
        )  # only the last shrinks in a narrow terminal
    for one, row in zip(components, rows, strict=True):
        mark = Text(MARKS[one.health], style=one.health)
        table.add_row(mark, *(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    return table


def _cells(one: ComponentStatus, has_cards: bool) -> list[str]:
    cells = [one.name, one.device, one.phase, gigabytes(one.memory_bytes)]
    cells += [f"{share(one.gpu_use)} {gigabytes(one.gpu_memory_bytes)}"] if has_cards else []
    age = NONE if one.progress_age_s is None else f"{one.progress_age_s:.0f} s"
    return [*cells, age, str(one.num_restarts), one.why or one.last_words]


def live_line(live: LiveStatus) -> str:
    """Progress, rates and idle shares of a running stage, as one line."""
    parts = [f"{live.stage} {live.done}/{live.total} {live.unit}" if live.total else live.stage]
    parts += [f"{name} {number(value)}" for name, value in live.numbers.items()]
    parts += [f"{live.tokens_per_s:.0f} tok/s"] if live.tokens_per_s else []
    parts += [f"{live.judged_per_s:.1f} judged/s"] if live.judged_per_s else []
    if live.idle:
        parts.append("idle " + " ".join(f"{role} {share(v)}" for role, v in live.idle.items()))
    if live.eta_s is not None:
        parts.append(f"ETA {minutes(live.eta_s)}")
    return "  ".join(parts)
