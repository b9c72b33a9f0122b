"""A table of a run's processes: from its supervisor while it is running, later from the store."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual.widgets import DataTable

from forge.views.text.numbers import NONE, duration, memory, share
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.process.control import ComponentStatus

SIGNS = {"green": "● ok", "yellow": "▲ watch", "red": "✘ bad"}
STYLES = {"green": "green", "yellow": "yellow", "red": "bold red"}

UUID = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]+")
"""Shortened to eight digits, which CUDA accepts too."""

NARROW, WIDE = 60, 130
COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("health", "health", 0),
    ("name", "process", 0),
    ("role", "role", WIDE),
    ("device", "device", NARROW),
    ("phase", "phase", 0),
    ("cpu", "CPU", NARROW),
    ("gpu_use", "GPU", NARROW),
    ("gpu_memory", "GPUmem", NARROW),
    ("memory", "memory", WIDE),
    ("age", "ago", 0),
    ("restarts", "rst", NARROW),
    ("words", "last log line", NARROW),
)
"""Field, heading, and minimum terminal width to show it."""
OF_GPUS = ("gpu_use", "gpu_memory")
"""Fields shown if there is a GPU; without one, the machine's memory is shown."""


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


class ProcessTable(DataTable[Text]):
    """The table; choosing a row (Enter, a click) leads to its log."""

    DEFAULT_CSS = """
    ProcessTable { height: auto; max-height: 14; scrollbar-size-horizontal: 0; }
    """

    def __init__(self) -> None:
        super().__init__(cursor_type="row", cell_padding=0, zebra_stripes=True)
        self._fields: tuple[str, ...] = ()
        self._names: list[str] = []

    def show_rows(self, rows: Sequence[ProcessRow]) -> None:
        """Rewrites the cells that changed; the cursor stays in place."""
        fields = _fields(rows, self.app.size.width)
        names = [row.name for row in rows]
        if fields != self._fields or names != self._names:
            self._rebuild(fields, rows)
            return
        for row in rows:
            for field in fields:
                cell = _cell(row, field)
                if self.get_cell(row.name, field) != cell:
                    self.update_cell(row.name, field, cell, update_width=True)

    def _rebuild(self, fields: tuple[str, ...], rows: Sequence[ProcessRow]) -> None:
        at = self.cursor_row
        self.clear(columns=True)
        self._fields, self._names = fields, [row.name for row in rows]
        for field, heading, _ in COLUMNS:
            if field in fields:
                self.add_column(Text(f"{heading} "), key=field)
        for row in rows:
            self.add_row(*(_cell(row, field) for field in fields), key=row.name)
        self.move_cursor(row=min(at, max(len(rows) - 1, 0)))


def _fields(rows: Sequence[ProcessRow], width: int) -> tuple[str, ...]:
    if all(row.cpu == NONE for row in rows):  # from the store, or an older supervisor
        least = {field: at for field, _, at in COLUMNS if field != "cpu"}
    else:
        least = {field: at for field, _, at in COLUMNS}
    has_gpu = any(getattr(row, field) != NONE for row in rows for field in OF_GPUS)
    if not has_gpu:
        least |= {"memory": NARROW} | dict.fromkeys(OF_GPUS, math.inf)
    return tuple(field for field, at in least.items() if width >= at)


def _cores(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _cell(row: ProcessRow, field: str) -> Text:
    if field == "health":
        if row.health is None:
            return Text(f"{NONE} ")
        return Text(f"{SIGNS[row.health]} ", style=STYLES[row.health])
    return Text(f"{printable(getattr(row, field))} ", no_wrap=True)
