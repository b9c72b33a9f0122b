"""`forge runs`: every run of a store directory with date, duration, state and best evaluation."""

from __future__ import annotations

import sqlite3
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forge.errors import ForgeError
from forge.store.layout import RunPaths, list_runs
from forge.store.read_only import RowTable
from forge.store.reader import RunReader
from forge.views.run_state import (
    EVALUATIONS,
    load_seconds,
    load_stages,
    parts_label,
    pass_by_source,
    run_state,
    trained_label,
)
from forge.views.text.numbers import NONE, duration
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Group as RichGroup

UNREADABLE = "unreadable"


def load_runs(store_dir: Path) -> list[dict[str, Any]]:
    """All runs, oldest first. A run that cannot be read has the reason as its state."""
    return [load_run(paths) for paths in list_runs(store_dir)]


def load_run(paths: RunPaths) -> dict[str, Any]:
    """One run, or the reason why it cannot be read."""
    try:
        with RunReader(paths) as reader:
            return {
                "name": paths.name,
                "path": str(paths.root),
                "state": run_state(reader),
                "stages": [stage.get("kind") for stage in load_stages(reader)],
                "started_at": reader.value("SELECT min(started_at) FROM attempts"),
                "seconds": load_seconds(reader, now=time.time()),
                "num_turns": reader.value("SELECT count(*) FROM turns"),
                "last_evaluation": _evaluation(reader, "at"),
                "best_evaluation": _evaluation(reader, "ci_low"),
            }
    except (ForgeError, sqlite3.Error, ValueError) as error:
        return {"name": paths.name, "path": str(paths.root), "state": f"{UNREADABLE}: {error}"}


def _evaluation(reader: RunReader, order: str) -> dict[str, Any] | None:
    """The evaluation with the highest value of a column. The lower end of the interval ranks them:
    few problems give high rates by chance.
    """
    row = reader.one(f"{EVALUATIONS} ORDER BY {order} DESC, at DESC LIMIT 1")
    if row is None:
        return None
    labels = {"parts": parts_label(row), "short": pass_by_source(row)}
    own = {name: row[name] for name in ("stage", "step", "pass_at_1", "ci_low", "ci_high")}
    return {**own, **labels, "trained_on": trained_label(row)}


def render_runs(runs: list[dict[str, Any]]) -> RichGroup:
    """One row per run, then a line for each that cannot be read."""
    from rich.console import Group as RichGroup
    from rich.text import Text

    from forge.views.text.fitting import Fitting

    rows = []
    for run in runs:
        best = run.get("best_evaluation")
        about = [best["stage"], best["trained_on"]] if best else []
        shown = f"{best['short']} ({', '.join(filter(None, about))})" if best else NONE
        rows.append(
            (run["name"], run["state"].partition(":")[0], _when(run.get("started_at")),
             duration(run.get("seconds")), " → ".join(run.get("stages", [])),
             run.get("num_turns"), shown)
        )  # fmt: skip
    columns = ("run", "state", "started (UTC)", "took", "stages", "turns", "best pass@1")
    bad = [run for run in runs if run["state"].startswith(UNREADABLE)]
    return RichGroup(
        Fitting(
            RowTable(columns=columns, rows=tuple(rows)),
            expendable=("stages", "turns", "started (UTC)"),
        ),
        *(Text(printable(f"{run['name']} is {run['state']}"), style="yellow") for run in bad),
    )


def _when(at: float | None) -> str:
    """`2026-11-21 18:08`."""
    return NONE if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
