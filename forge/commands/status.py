"""`forge status`: the state of a run, and of its processes if its supervisor answers. `forge ps`:
the runs of a store directory that are running now, one line each.

`load_status` and `load_running` are the only sources of text and JSON, so they cannot disagree.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forge.errors import ConfigError, ForgeError, Stalled
from forge.process.control import ComponentStatus, LiveStatus
from forge.store.layout import RunPaths, is_owned, list_runs, read_status
from forge.store.reader import RunReader, open_run
from forge.views import run_state
from forge.views.compare import load_gains
from forge.views.fitting import Fitting
from forge.views.text import NONE, at_least, duration, gigabytes, memory, minutes, printable, share

ENDED = ("done", "stopped", "failed", "killed")
BEST_KERNEL = """
SELECT problem_id, speedup_low, turn_id FROM v_best_kernels ORDER BY rank LIMIT 1
"""
MARKS = {"green": "●", "yellow": "▲", "red": "✖"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    run: run_state.RunState
    took: str = ""
    """Duration and end of an ended run; empty for another one."""
    results: tuple[str, ...] = ()
    """Lines about an ended run: gains, best kernel, and where to see more."""
    nodes: tuple[dict[str, Any], ...] = ()
    """Nodes of the last attempt with `[cluster]`, as `v_nodes` has them."""
    silence: Stalled | None = None
    """The deadline that the supervisor missed. The command ends with its exit code."""

    def to_json(self) -> dict[str, Any]:
        silence = self.silence and str(self.silence)
        return {**self.run.to_json(), "nodes": list(self.nodes), "silence": silence}

    def render(self) -> RenderableType:
        """The same as text: the state, the running stage, a table of processes."""
        run, lines = self.run, self.run.to_lines()
        nodes = [Text(), render_nodes(self.nodes, now=time.time())] if self.nodes else []
        if run.live is not None:
            lines.append(live_line(run.live, run.played))
            return Group(*map(Text, lines), render(run.live.components), *nodes)
        lines[0] += self.took
        if run.state != "done":
            lines += run_state.describe_steps(run.played)
        lines += self.results
        if run.state == "running":
            lines.append("its supervisor does not answer, has just begun, or is ending")
        return Group(*map(Text, lines), *nodes)


def load_status(paths: RunPaths) -> RunStatus:
    """Reads the store, and asks the supervisor if there is one."""
    live, silence = None, None
    try:
        live = _ask_supervisor(paths)
    except Stalled as error:
        silence = error
    judges = live.components if live is not None else ()
    judged = [(one.node, one.num_judged) for one in judges if one.num_judged is not None]
    with open_run(paths) as reader:
        run = replace(run_state.load_run_state(reader, now=time.time()), live=live)
        has_results = run.state in ENDED and silence is None
        return RunStatus(
            run=run,
            took=_took(reader) if has_results else "",
            results=tuple(_results(reader)) if has_results else (),
            nodes=tuple(run_state.load_nodes(reader, judged=judged)),
            silence=silence,
        )


def _took(reader: RunReader) -> str:
    """`, took 6m23, ended 2026-11-21 18:14 UTC`."""
    seconds = run_state.load_seconds(reader, now=time.time())
    ended = reader.value("SELECT max(ended_at) FROM attempts")
    at = f", ended {datetime.fromtimestamp(ended, UTC):%Y-%m-%d %H:%M} UTC" if ended else ""
    return "" if seconds is None else f", took {duration(seconds)}{at}"


def _results(reader: RunReader) -> list[str]:
    """Lines about a run that has ended; none of them without its numbers."""
    lines: list[str] = []
    names = run_state.stage_names(run_state.load_stages(reader))
    gains = load_gains(reader, reader.rows(run_state.IN_ORDER), names)
    if gains:
        listed = "; ".join(f"{' and '.join(gain.by)} {gain.points()}" for gain in gains)
        lines.append(f"gained, paired by problem: {listed}")
    best = reader.one(BEST_KERNEL)
    if best is not None:
        timed = f"{at_least(best['speedup_low'])} as fast as its baseline"
        speed = "not timed" if best["speedup_low"] is None else timed
        lines.append(f"best kernel: {printable(best['problem_id'])}, {speed} ({best['turn_id']})")
    name, file = reader.paths.name, reader.paths.root / "report.html"
    report = printable(str(file)) if file.exists() else f"forge report {name}"
    lines.append(f"more: forge tui {name}; forge sql --list; {report}")
    return lines


def render(components: Sequence[ComponentStatus]) -> Table:
    has_cards = any(one.gpu_use is not None or one.gpu_memory_bytes for one in components)
    names = ["process", "device", "phase", "memory", *(["GPU"] if has_cards else [])]
    names += ["age", "restarts", "reason, or last line"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in names:  # only the last shrinks in a narrow terminal
        table.add_column(name, no_wrap=name != names[-1])
    for one in components:
        cells = [one.name, one.device, one.phase, gigabytes(one.memory_bytes)]
        cells += [f"{share(one.gpu_use)} {gigabytes(one.gpu_memory_bytes)}"] if has_cards else []
        age = NONE if one.progress_age_s is None else f"{one.progress_age_s:.0f} s"
        cells += [age, str(one.num_restarts), one.why or one.last_words]
        shown = (Text(printable(cell), no_wrap=True, overflow="ellipsis") for cell in cells)
        table.add_row(Text(MARKS[one.health], style=one.health), *shown)
    return table


def live_line(live: LiveStatus, played: run_state.PlayedSteps) -> str:
    """Progress, last steps, rates and idle shares of a running stage, as one line."""
    stage = f"{live.stage} {live.done}/{live.total} {live.unit}" if live.total else live.stage
    eta = [] if live.eta_s is None else [f"ETA {minutes(live.eta_s)}"]
    return "  ".join([stage, *run_state.live_facts(live, played), *eta])


def _ask_supervisor(paths: RunPaths, **limits: float) -> LiveStatus | None:
    """None if no supervisor is there. Raises Stalled if it is silent."""
    try:
        client = run_state.open_client(paths, **limits)
        return None if client is None else client.status()
    except ConfigError:  # it has just begun, or is ending
        return None


def render_nodes(nodes: Sequence[Mapping[str, Any]], *, now: float) -> Table:
    table = Table("node", "roles", "GPUs", "judged", "lost", "state", box=None, pad_edge=False)
    for row in nodes:
        is_up = row["state"] == "up"
        since = row["joined_at"] if is_up else row["left_at"]
        ago = duration(max(0.0, now - since)) if since else NONE
        state = f"up, joined {ago} ago" if is_up else f"{row['state']} {ago} ago: {row['reason']}"
        judged = NONE if row["num_judged"] is None else str(row["num_judged"])
        cells = (row["node"], row["roles"], str(row["num_gpus"]), judged, str(row["num_lost"]))
        table.add_row(*(printable(cell) for cell in (*cells, state)))
    return table


TIMEOUT_S = 2.0


def load_running(store_dir: Path) -> list[dict[str, Any]]:
    """Name, path, supervisor's pid, stage, progress and use of each running run, oldest first."""
    return [_load_running_run(paths) for paths in list_runs(store_dir) if is_owned(paths)]


def _load_running_run(paths: RunPaths) -> dict[str, Any]:
    row = {"name": paths.name, "path": str(paths.root), "pid": read_status(paths).get("pid")}
    try:
        live = _ask_supervisor(paths, timeout_s=TIMEOUT_S)
    except (ForgeError, OSError, ValueError, TypeError):  # it is ending, or silent
        live = None
    if live is None:
        return {**row, "stage": None}
    cores = [each.cpu_cores for each in live.components if each.cpu_cores is not None]
    held = [each.memory_bytes for each in live.components if each.memory_bytes is not None]
    return {
        **row, "stage": live.stage, "done": live.done, "total": live.total, "unit": live.unit,
        "eta_s": live.eta_s, "cpu_cores": sum(cores) if cores else None,
        "memory_bytes": sum(held) if held else None, "num_processes": len(live.components),
    }  # fmt: skip


def render_running(rows: list[dict[str, Any]]) -> Fitting:
    from forge.views.fitting import Fitting

    columns = ("run", "stage", "progress", "ETA", "CPU", "memory", "processes", "pid")
    return Fitting(columns, map(_running_cells, rows), expendable=("processes", "CPU"))


def _running_cells(row: dict[str, Any]) -> tuple[Any, ...]:
    if row["stage"] is None:
        return (row["name"], "does not answer", NONE, NONE, NONE, NONE, NONE, row["pid"])
    progress = f"{row['done']}/{row['total']} {row['unit']}" if row["total"] else NONE
    cores, held = row["cpu_cores"], row["memory_bytes"]
    return (
        row["name"], row["stage"], progress, duration(row["eta_s"]),
        NONE if cores is None else f"{cores:.1f}", memory(None if held is None else int(held)),
        row["num_processes"], row["pid"],
    )  # fmt: skip
