"""`forge runs`: every run of a store directory with its state and its last evaluation."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.errors import ForgeError
from forge.store.identity import read_identity
from forge.store.layout import RunPaths, list_runs
from forge.store.reader import RunReader
from forge.store.statements import RowTable
from forge.views.run.standing import count_turns, load_stages, run_state
from forge.views.text.numbers import NONE, percent

if TYPE_CHECKING:
    from rich.table import Table as RichTable


def load_runs(store_dir: Path) -> list[dict[str, Any]]:
    """All runs, oldest first. A run that cannot be read has the reason as its state."""
    return [load_run(paths) for paths in list_runs(store_dir)]


def load_run(paths: RunPaths) -> dict[str, Any]:
    """One run, or the reason why it cannot be read."""
    try:
        with RunReader(paths) as reader:
            last = reader.one("SELECT * FROM v_evaluations ORDER BY at DESC LIMIT 1") or {}
            return {
                "name": paths.name,
                "path": str(paths.root),
                "id": identity.id if (identity := read_identity(paths)) else None,
                "state": run_state(reader),
                "stages": [stage.get("kind") for stage in load_stages(reader)],
                "started_at": reader.value("SELECT min(started_at) FROM attempts"),
                "num_turns": count_turns(reader),
                "last_evaluation": {
                    name: last[name] for name in ("stage", "step", "pass_at_1", "ci_low", "ci_high")
                }
                if last
                else None,
            }
    except (ForgeError, sqlite3.Error) as error:
        return {"name": paths.name, "path": str(paths.root), "state": f"unreadable: {error}"}


def render_runs(runs: list[dict[str, Any]]) -> RichTable:
    """One row per run."""
    from forge.views.sql.sql import render_table

    rows = []
    for run in runs:
        last = run.get("last_evaluation")
        shown = f"{percent(last['pass_at_1'])} ({last['stage']})" if last else NONE
        stages = " → ".join(run.get("stages", []))
        rows.append((run["name"], run["state"], stages, run.get("num_turns"), shown))
    columns = ("run", "state", "stages", "turns", "last pass@1")
    return render_table(RowTable(columns=columns, rows=tuple(rows)))
