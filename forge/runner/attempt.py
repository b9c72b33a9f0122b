"""Records of one attempt: its description, for repeating it; its log, STATUS.json, counters and
limits, by background tasks that never delay the work; and how it ended.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from forge import origin
from forge.errors import MachineError
from forge.exits import Ending
from forge.process.devices import Gpu
from forge.process.machine import total_memory_bytes
from forge.records import Attempt, AttemptEnd
from forge.runner.live.stopping import limit_reached
from forge.runner.plan.machine import count_cores
from forge.runner.stages.run_context import RunContext
from forge.store.layout import RunPaths, write_status
from forge.version import __version__

PACKAGES = (
    "torch", "triton", "transformers", "trl", "peft", "datasets", "tokenizers",
    "llama-cpp-python", "gguf", "vllm", "numpy",
)  # fmt: skip
MAX_DIFF_BYTES = 1 << 20
"""Maximum recorded length of uncommitted changes; longer ones are cut."""
UNKNOWN_CHANGES = "forge was built from a checkout with uncommitted changes, which are not known\n"
STATUS_EVERY_S = 1.0
MAX_REASON = 2000
"""Maximum length of the recorded reason in characters; a dead child's includes log lines."""


def describe_attempt(attempt: int, *, seed: int, gpus: Sequence[Gpu]) -> Attempt:
    """This start. Takes milliseconds; imports nothing heavy."""
    commit, code_diff = _describe_code(origin.PACKAGE)
    return Attempt(
        attempt=attempt,
        started_at=time.time(),
        commit=commit,
        code_diff=code_diff,
        versions={
            "python": platform.python_version(),
            "forge": __version__,
            **origin.installed_versions(PACKAGES),
        },
        machine={
            "host": platform.node(),
            "kernel": platform.release(),
            "cores": count_cores(),
            "memory_bytes": total_memory_bytes(),
            "gpus": [
                {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "bytes": gpu.memory_bytes}
                for gpu in gpus
            ],
        },
        seed=seed,
    )


def _describe_code(package: Path) -> tuple[str, str]:
    """The commit, and the uncommitted changes of a checkout; for a wheel that was built from some,
    a line about it."""
    if commit := origin.git("rev-parse", "HEAD", package=package).strip():
        diff = origin.git("diff", "HEAD", "--", "forge", "experiments", package=package)
        return commit, diff[:MAX_DIFF_BYTES]
    built = origin.read_record(package)
    return built.commit, UNKNOWN_CHANGES if built.is_changed else ""


class RunLog(logging.FileHandler):
    """A log file that drops the lines that it cannot write: the run's own error says why."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # of the first line, which opens the file
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Prints a mistake in a call of the logger; nothing about the disk."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def log_to(path: Path) -> None:
    handler = RunLog(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def is_gone(paths: RunPaths) -> bool:
    try:
        return not paths.run_db.exists()
    except OSError:  # not readable: the next write says why
        return False


def moved(paths: RunPaths) -> MachineError:
    """The error of a run whose directory is gone, whatever else that led to."""
    return MachineError(
        f"{paths.root}: moved or deleted while its run wrote to it; what was recorded is at its "
        'new place, where "forge resume" continues it; training since the last checkpoint is done '
        "again"
    )


async def keep_status(run: RunContext) -> None:
    """Write STATUS.json once a second until cancelled. Ends the children and raises MachineError if
    the run's directory is gone: a trainer would make a new one in its place."""
    while True:
        if is_gone(run.paths):
            run.observer.kill_all()
            raise moved(run.paths)
        record_status(run, state="running", control_socket=str(run.control_socket))
        await anyio.sleep(STATUS_EVERY_S)


async def keep_counters(run: RunContext) -> None:
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


def record_status(run: RunContext, *, state: str, **more: str) -> None:
    status = {**run.progress.snapshot(), "state": state, "pid": os.getpid(), "at": time.time()}
    write_status(run.paths, status | more)


async def record_end(run: RunContext, ending: Ending) -> None:
    """Record how the attempt ended. Returns once it is on disk; each wait on the store has its own
    deadline."""
    row = AttemptEnd(
        attempt=run.attempt, ended_at=time.time(), exit_code=ending.code,
        reason=ending.message[:MAX_REASON],
    )  # fmt: skip
    with anyio.CancelScope(shield=True):
        await run.writer.put(row)
        await run.writer.flush()
