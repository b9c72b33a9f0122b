"""What goes on beside the work of a run, and never holds it up: its log, signals, STATUS.json,
counters and limits; and the record of how it ended."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from forge.records import AttemptEnd
from forge.runner.live.stopping import limit_reached, watch_signals
from forge.store.layout import write_status

if TYPE_CHECKING:
    from forge.exits import Ending
    from forge.runner.live.console import Console
    from forge.runner.live.observer import StoreObserver
    from forge.runner.live.progress import Progress
    from forge.runner.live.stopping import StopRequest
    from forge.runner.stages.run_context import Run
    from forge.store.layout import RunPaths
    from forge.store.write.writer import Writer

STATUS_EVERY_S = 1.0
LONGEST_REASON = 2000
"""Characters of what an attempt ended with; a dead child's carries lines of its log."""


def log_to(path: Path) -> None:
    """Send the supervisor's own log to a file: the terminal shows progress only."""
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


async def hear_signals(
    stop: StopRequest, console: Console, working: anyio.CancelScope, observer: StoreObserver
) -> None:
    """Until cancelled: the first Ctrl-C asks, the second takes the work down."""
    await watch_signals(
        stop, say=console.say, cancel_work=working.cancel, kill_all=observer.kill_all
    )


async def keep_status(paths: RunPaths, progress: Progress, control_socket: Path) -> None:
    """STATUS.json, until cancelled."""
    while True:
        record_status(paths, progress, state="running", control_socket=str(control_socket))
        await anyio.sleep(STATUS_EVERY_S)


async def keep_counters(run: Run) -> None:
    """Token and judgement counters and `[limits]`, twice a second."""
    progress, limits = run.progress, run.experiment.limits
    while True:
        now = time.monotonic()
        if run.replicas is not None:
            progress.tokens.set(run.replicas.stats().generated_tokens, now)
        if run.pool is not None:
            progress.judged.set(run.pool.stats().num_judged, now)
        progress.measure_idle(run.busy())
        hours = (now - progress.started_at) / 3600
        reached = limit_reached(limits, hours=hours, tokens=progress.tokens.total)
        if reached and not run.stop.is_set:
            run.stop.set(reached)
            run.console.say(f"{reached}: finishing the step and saving")
        await anyio.sleep(0.5)


def record_status(
    paths: RunPaths, progress: Progress, *, state: str, control_socket: str = ""
) -> None:
    """STATUS.json once."""
    status = {**progress.snapshot(), "state": state, "pid": os.getpid(), "at": time.time()}
    if control_socket:
        status["control_socket"] = control_socket
    write_status(paths, status)


async def record_end(writer: Writer, attempt: int, ending: Ending) -> None:
    """Returns once it is on disk; each wait on the store has its own deadline."""
    row = AttemptEnd(
        attempt=attempt,
        ended_at=time.time(),
        exit_code=ending.code,
        reason=ending.words[:LONGEST_REASON],
    )
    with anyio.CancelScope(shield=True):
        await writer.put(row)
        await writer.flush()
