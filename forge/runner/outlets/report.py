"""The report that a run leaves when it ends, done, stopped or failed: `report.html` beside run.db.

Called by `run.py` once the run is recorded, its lock let go and its cards given back. A child makes
it, within a deadline: what is wrong with it is a line for people, never the run's own ending.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from forge.errors import ForgeError
from forge.process.child import ChildSpec, open_child
from forge.process.environment import child_env
from forge.store.reader import open_run
from forge.store.resume import events
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.runner.live.console import Console
    from forge.store.layout import RunPaths

log = logging.getLogger(__name__)

DEADLINE_S = 10.0
"""It takes 2 s of a core, whatever the size of the run; a run's end shall not wait for more."""


@contextmanager
def report_at_end(console: Console) -> Iterator[list[RunPaths]]:
    """Leaves the report of each run that was put on the list, however this block ends."""
    runs: list[RunPaths] = []
    try:
        yield runs
    finally:
        for paths in runs:
            leave_report(paths, console)


def leave_report(paths: RunPaths, console: Console) -> None:
    """Writes it and says where it is. Raises nothing: a Ctrl-C meanwhile is for the report alone.
    A run that came to no stage has nothing to report."""
    again = f'"forge report {paths.name}" writes it'
    try:
        if not _has_begun(paths):
            return
        console.say(anyio.run(_make, paths) or f"the report took over {DEADLINE_S:.0f} s; {again}")
    except KeyboardInterrupt:
        console.say(f"the report was left out; {again}")
    except Exception as error:  # boundary: nothing in a report is worth a run's ending
        log.warning("report: %s", error)
        console.say(f"no report: {printable(str(error)).splitlines()[0][:200]}; {again}")


def _has_begun(paths: RunPaths) -> bool:
    if not paths.run_db.exists():
        return False
    with open_run(paths) as reader:
        return next(iter(events(reader, kind="stage_start")), None) is not None


async def _make(paths: RunPaths) -> str:
    """Where it is, in words; empty where the deadline was first."""
    spec = ChildSpec(
        name="report",
        argv=(sys.executable, "-m", "forge.runner.outlets.report_child"),
        log_path=(paths.root / "logs" / "latest").resolve() / "report.log",
        env=child_env(threads=1),
        socket_path=None,
        config={"root": str(paths.root.absolute())},
        stop_grace_s=0.0,
    )
    async with open_child(spec) as child:
        with anyio.move_on_after(DEADLINE_S):
            if await child.wait() == "exit 0":
                return f"report: {child.last_log_lines(1)}"
            raise ForgeError(child.last_log_lines(1) or child.exit_reason)
    return ""
