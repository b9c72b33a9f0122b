"""A table of a run's processes: from its supervisor while it is running, later from the store."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forge.tui.widgets.row_table import Column, RowTable
from forge.views.text.numbers import NONE, duration, memory, share
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.process.control import ComponentStatus

SIGNS: dict[str | None, str] = {"green": "● ok", "yellow": "▲ watch", "red": "✘ bad"}
STYLES: dict[str | None, str] = {"green": "green", "yellow": "yellow", "red": "bold red"}

UUID = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]+")
"""Shortened to eight digits, which CUDA accepts too."""

NARROW, WIDE = 60, 130
OF_GPUS = ("gpu_use", "gpu_memory")
"""Columns shown if there is a GPU; without one, the machine's memory is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process, as text."""

    name: str
    role: str
    device: str
    phase: str
    health: str | None
    """green, yellow or red; None if unknown."""
    cpu: str = NONE
    """Cores in use."""
    gpu_use: str = NONE
    gpu_memory: str = NONE
    memory: str = NONE
    age: str = NONE
    """Time since its last progress, or since its end."""
    restarts: str
    words: str


def row_of_component(status: ComponentStatus) -> ProcessRow:
    """A row from the supervisor's status; the reason of its health precedes its last log line."""
    words = " · ".join(part for part in (status.why, status.last_words) if part)
    return ProcessRow(
        name=status.name, role=status.role, device=status.device, phase=status.phase,
        health=status.health, cpu=_cores(status.cpu_cores), gpu_use=share(status.gpu_use),
        gpu_memory=memory(status.gpu_memory_bytes), memory=memory(status.memory_bytes),
        age=duration(status.progress_age_s), restarts=str(status.num_restarts), words=words,
    )  # fmt: skip


def row_of_store(row: dict[str, Any], *, now: float) -> ProcessRow:
    """A row from the store, of a process that is alive or did not end well."""
    ended = row["ended_at"]
    return ProcessRow(
        name=row["name"], role=re.sub(r"-\d+$", "", row["name"]),
        device=UUID.sub(r"\1", row["devices"] or "") or NONE,
        phase="ended" if ended else "started", health=None,
        age=duration(now - (ended or row["started_at"] or now)),
        restarts=str(row["num_restarts"]), words=row["reason"] or "alive",
    )  # fmt: skip


def _text(name: str) -> Callable[[ProcessRow], str]:
    return lambda row: printable(getattr(row, name))


COLUMNS = (
    Column(
        "health", "health", lambda row: SIGNS.get(row.health, NONE),
        style=lambda row: STYLES.get(row.health, ""),
    ),
    Column("name", "process", _text("name")),
    Column("role", "role", _text("role"), from_width=WIDE),
    Column("device", "device", _text("device"), from_width=NARROW),
    Column("phase", "phase", _text("phase")),
    Column("cpu", "CPU", _text("cpu"), from_width=NARROW),
    Column("gpu_use", "GPU", _text("gpu_use"), from_width=NARROW),
    Column("gpu_memory", "GPUmem", _text("gpu_memory"), from_width=NARROW),
    Column("memory", "memory", _text("memory"), from_width=WIDE),
    Column("age", "ago", _text("age")),
    Column("restarts", "rst", _text("restarts"), from_width=NARROW),
    Column("words", "last log line", _text("words"), from_width=NARROW, takes_rest=True),
)  # fmt: skip


class ProcessTable(RowTable):
    """The table; choosing a row (Enter, a click) leads to its log."""

    DEFAULT_CSS = """
    ProcessTable { height: auto; max-height: 14; scrollbar-size-horizontal: 0; }
    """

    def __init__(self) -> None:
        super().__init__(COLUMNS)

    def show_processes(self, rows: Sequence[ProcessRow]) -> None:
        """Shows the columns that have a value; without a GPU, the memory from a narrow width."""
        has_gpu = any(getattr(row, name) != NONE for row in rows for name in OF_GPUS)
        left_out = () if has_gpu else OF_GPUS
        if all(row.cpu == NONE for row in rows):  # from the store
            left_out = (*left_out, "cpu")
        self.columns_shown = [
            each if has_gpu or each.key != "memory" else replace(each, from_width=NARROW)
            for each in COLUMNS
            if each.key not in left_out
        ]
        self.show_rows([(row.name, row) for row in rows])


def _cores(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"
