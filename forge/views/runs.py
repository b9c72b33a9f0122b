"""`forge runs`: every run and archive of a store directory with date, duration, state and best
evaluation; and archives where a RUN is named: `forge show RUN.forge.zip`.

An archive is read from a private folder in TMPDIR, which ends with the command; the next command
removes those of killed ones (`process.sockets`).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from rich.console import Group as RichGroup
from rich.text import Text

from forge.errors import ConfigError, ForgeError
from forge.process.sockets import open_private_dir
from forge.store.archive import is_archive, list_archives, unpack_to_read
from forge.store.layout import RunPaths, list_runs
from forge.store.reader import RunReader
from forge.views.fitting import Fitting
from forge.views.run_state import EVALUATIONS, load_seconds, load_stages, run_state, words_of
from forge.views.text import NONE, duration, printable, when


@contextmanager
def open_archive(file: Path) -> Generator[RunPaths]:
    """The archived run without its weights, while inside. Raises ConfigError, MachineError."""
    with open_private_dir(Path(gettempdir())) as folder:
        (folder / "run").mkdir()
        yield unpack_to_read(file, folder / "run")


def load_all(store_dir: Path, places: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Rows of `forge runs`: the runs and archives of a store, or of the given places."""
    found: list[dict[str, Any]] = []
    for place in places or [store_dir]:
        if is_archive(place):
            found.append(_load_archive(place))
        elif (place / "run.db").is_file():
            found.append(load_run(RunPaths(place.resolve())))
        elif place.is_dir() or not places:
            found += load_runs(place)
            found += [_load_archive(file) for file in list_archives(place)]
        else:
            raise ConfigError(f"{place}: no such file or directory")
    return found


def _load_archive(file: Path) -> dict[str, Any]:
    """The row of an archive, or the reason why it cannot be read."""
    try:
        with open_archive(file) as paths:
            row = load_run(paths)
        row["state"] += ", archived"
    except ForgeError as error:
        row = {"state": f"unreadable: {error}"}
    return {**row, "name": file.name, "path": str(file.absolute())}


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
    few problems give high rates by chance."""
    row = reader.one(f"{EVALUATIONS} ORDER BY {order} DESC, at DESC LIMIT 1")
    if row is None:
        return None
    words = words_of(row)
    labels = {"parts": words["parts"], "short": words["short"], "trained_on": words["trained"]}
    own = {name: row[name] for name in ("stage", "step", "pass_at_1", "ci_low", "ci_high")}
    return {**own, **labels}


def render_runs(runs: list[dict[str, Any]]) -> RichGroup:
    """One row per run, then a line for each that cannot be read."""
    rows = []
    for run in runs:
        best = run.get("best_evaluation")
        about = [best["stage"], best["trained_on"]] if best else []
        shown = f"{best['short']} ({', '.join(filter(None, about))})" if best else NONE
        rows.append(
            (run["name"], run["state"].partition(":")[0], when(run.get("started_at")),
             duration(run.get("seconds")), " → ".join(run.get("stages", [])),
             run.get("num_turns"), shown)
        )  # fmt: skip
    columns = ("run", "state", "started (UTC)", "took", "stages", "turns", "best pass@1")
    bad = [run for run in runs if run["state"].startswith(UNREADABLE)]
    return RichGroup(
        Fitting(columns, rows, expendable=("stages", "turns", "started (UTC)")),
        *(Text(printable(f"{run['name']} is {run['state']}"), style="yellow") for run in bad),
    )
