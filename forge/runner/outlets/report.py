"""The report that a run writes at any ending: `report.html` beside run.db.

Called by `run.py` after the ending is recorded and lock and cards are released. A child process,
this module, makes it within a deadline; its last line is the path or the error. A failure is a line
on the console and never changes the run's ending.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path

import anyio

from forge.errors import ConfigError, ForgeError, MachineError
from forge.exits import ending_of
from forge.process.child import Child, ChildSpec, open_child
from forge.process.environment import child_env
from forge.process.lease import hold_lease
from forge.runner.live.progress import Console
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.resume import events
from forge.views.text import printable

log = logging.getLogger(__name__)

DEADLINE_S = 10.0
"""Maximum delay of a run's end. A report takes 2 s of a core for a run of any size."""


@contextmanager
def report_at_end(console: Console) -> Generator[list[RunPaths]]:
    """Writes the report of each run in the yielded list when the block ends, even with an error."""
    runs: list[RunPaths] = []
    machine_failed = False
    try:
        yield runs
    except BaseException as error:
        machine_failed = ending_of(error).code == MachineError.exit_code
        raise
    finally:
        for paths in runs:
            write_at_end(paths, console, machine_failed=machine_failed)


def write_at_end(paths: RunPaths, console: Console, *, machine_failed: bool = False) -> None:
    """Writes the report of a run and prints its path; none for one that began no stage.

    Raises nothing: a Ctrl-C ends only the report.

    Args:
        machine_failed: the run ends with a line about the disk or the like. The same failure of its
            report is only logged.
    """
    again = f'"forge report {paths.name}" writes it'
    try:
        if not paths.run_db.exists():
            return
        with open_run(paths) as reader:
            if not any(events(reader, kind="stage_start")):
                return
        console.say(anyio.run(_make, paths, again))
    except ConfigError:
        return  # it ended before anything was recorded
    except KeyboardInterrupt:
        console.say(f"the report was skipped; {again}")
    except Exception as error:  # boundary: no failure of a report may change the ending
        log.warning("report: %s", error)
        if machine_failed:
            return
        console.say(f"no report: {printable(str(error)).splitlines()[0][:200]}; {again}")


async def _make(paths: RunPaths, again: str) -> str:
    """Message with the report's path, or why there is none."""
    spec = ChildSpec(
        name="report",
        argv=(sys.executable, "-m", "forge.runner.outlets.report"),
        log_path=(paths.root / "logs" / "latest").resolve() / "report.log",
        env=child_env(threads=1),
        socket_path=None,
        config={"root": str(paths.root.absolute())},
        stop_grace_s=0.0,
    )
    with anyio.open_signal_receiver(signal.SIGINT) as interrupts:
        async with open_child(spec) as child:
            if await _wait_or_interrupt(child, interrupts):
                return f"the report was skipped; {again}"
            if child.is_alive:
                return f"the report took over {DEADLINE_S:.0f} s; {again}"
            if child.exit_reason == "exit 0":
                return f"report: {child.last_log_lines(1)}"
            raise ForgeError(child.last_log_lines(1) or child.exit_reason)


async def _wait_or_interrupt(child: Child, interrupts: AsyncIterator[signal.Signals]) -> bool:
    """Waits for the child's end, a Ctrl-C or the deadline; True for a Ctrl-C.

    `asyncio.run` has a Ctrl-C handler of its own, which can miss one: it sets no wake-up descriptor
    (`signal.set_wakeup_fd`), so that a signal which another thread receives, or which comes right
    before the loop sleeps, is not seen before the next timer.
    """
    with anyio.move_on_after(DEADLINE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(_wait_and_cancel, child, group.cancel_scope)
            async for _ in interrupts:
                group.cancel_scope.cancel()
                return True
    return False


async def _wait_and_cancel(child: Child, scope: anyio.CancelScope) -> None:
    await child.wait()
    scope.cancel()


def main() -> None:
    config = hold_lease()
    from forge.views.report.page import write_report

    try:
        line, code = str(write_report(RunPaths(Path(config["root"])))), 0
    except ForgeError as error:
        line, code = str(error), 1
    sys.stderr.write(f"{line}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
