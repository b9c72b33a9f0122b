"""`forge ps`: the runs of a store directory that are running now, one line each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.errors import ForgeError
from forge.store.layout import list_runs
from forge.store.ownership import is_owned, read_status
from forge.store.read_only import RowTable
from forge.views.run_state import open_client
from forge.views.text.numbers import NONE, duration, memory

if TYPE_CHECKING:
    from forge.process.control import LiveStatus
    from forge.store.layout import RunPaths
    from forge.views.text.fitting import Fitting


TIMEOUT_S = 2.0
"""Maximum wait for each supervisor."""


def load_running(store_dir: Path) -> list[dict[str, Any]]:
    """Name, path, supervisor's pid, stage, progress and use of each running run, oldest first."""
    return [_load(paths) for paths in list_runs(store_dir) if is_owned(paths)]


def _load(paths: RunPaths) -> dict[str, Any]:
    status = read_status(paths)
    live = _ask(paths)
    row: dict[str, Any] = {"name": paths.name, "path": str(paths.root), "pid": status.get("pid")}
    if live is None:
        return {**row, "stage": None}
    return {
        **row, "stage": live.stage, "done": live.done, "total": live.total, "unit": live.unit,
        "eta_s": live.eta_s, "cpu_cores": _total(live, "cpu_cores"),
        "memory_bytes": _total(live, "memory_bytes"), "num_processes": len(live.components),
    }  # fmt: skip


def _ask(paths: RunPaths) -> LiveStatus | None:
    """None if the supervisor has just begun, is ending, or is silent."""
    try:
        client = open_client(paths, timeout_s=TIMEOUT_S)
        return None if client is None else client.status()
    except (ForgeError, OSError, ValueError, TypeError):
        return None


def _total(live: LiveStatus, name: str) -> float | None:
    found = [value for each in live.components if (value := getattr(each, name)) is not None]
    return sum(found) if found else None


def render_running(rows: list[dict[str, Any]]) -> Fitting:
    """The same as a table."""
    from forge.views.text.fitting import Fitting

    columns = ("run", "stage", "progress", "ETA", "CPU", "memory", "processes", "pid")
    table = RowTable(columns=columns, rows=tuple(map(_cells, rows)))
    return Fitting(table, expendable=("processes", "CPU"))


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    if row["stage"] is None:
        return (row["name"], "does not answer", NONE, NONE, NONE, NONE, NONE, row["pid"])
    progress = f"{row['done']}/{row['total']} {row['unit']}" if row["total"] else NONE
    cores, held = row["cpu_cores"], row["memory_bytes"]
    return (
        row["name"], row["stage"], progress, duration(row["eta_s"]),
        NONE if cores is None else f"{cores:.1f}", memory(None if held is None else int(held)),
        row["num_processes"], row["pid"],
    )  # fmt: skip
