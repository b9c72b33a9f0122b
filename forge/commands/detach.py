"""`forge run -d`: starts the supervisor in a new session, and returns once the run has a directory.

The detached process is the same command without `-d`. Its output goes to a log beside the run
directories, which moves into the run directory once it exists.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from forge.errors import ForgeError, Stalled
from forge.process.child import read_last_lines
from forge.process.environment import python_path
from forge.store.layout import RunPaths, read_status

START_TIMEOUT_S = 60.0
"""Maximum time until the run directory has its STATUS.json. By then the machine has been checked,
but no model loaded; a hub model is already in the cache."""
GRACE_S = 5.0


def run_detached(argv: Sequence[str], *, store_dir: Path, wait_s: float = 0.0) -> RunPaths:
    """Starts `forge ARGV` in a new session and returns its run directory. Raises ForgeError: the
    process ended before; the message is its own; Stalled: it made no run directory in time,
    `wait_s` of which it may wait for GPUs."""
    began = time.time()
    store_dir.mkdir(parents=True, exist_ok=True)
    log_path = store_dir / f"detached-{time.time_ns()}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "forge", *argv],
            env={**os.environ, "PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_S + wait_s
    while time.monotonic() < deadline:
        if (paths := _run_of(process.pid, store_dir, since=began)) is not None:
            log_path.rename(paths.root / "logs" / "console.log")
            return paths
        if process.poll() is not None:
            raise _ended(process.returncode, log_path)
        time.sleep(0.05)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)
    process.kill()
    process.wait(timeout=GRACE_S)
    raise Stalled(f"the detached run was silent for {START_TIMEOUT_S:.0f} s; see {log_path}")


def _run_of(pid: int, store_dir: Path, *, since: float) -> RunPaths | None:
    """The run that a process started after `since`; an older run may have had the same pid."""
    for path in store_dir.glob("*/STATUS.json"):
        paths = RunPaths(path.parent.resolve())
        status = read_status(paths)
        if status.get("pid") == pid and status.get("at", 0.0) >= since:
            return paths
    return None


def _ended(code: int, log_path: Path) -> ForgeError:
    """The error that `explain` printed last: one line that starts with `forge: `, or several."""
    output = read_last_lines(log_path, num_lines=50) or f"the run ended with {code}"
    last = output.rpartition("\n")[2]
    is_bug = code == ForgeError.exit_code
    named = last.removeprefix("forge: ")
    error = ForgeError(output if is_bug or named == last else named)
    error.exit_code = code
    log_path.unlink()
    return error
