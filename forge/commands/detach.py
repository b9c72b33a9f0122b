"""`forge run -d`: the supervisor in a session of its own, and the terminal free again once the run
has a directory.

The detached process is the same command without `-d`. What it says until then, and afterwards, is
in a log beside the run directories.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from forge.errors import ForgeError, Stalled
from forge.process.environment import python_path
from forge.process.logtail import read_last_lines
from forge.store.layout import RunPaths
from forge.store.ownership import read_status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

START_TIMEOUT_S = 60.0
"""Until the run directory has its STATUS.json: the machine is checked before, no model is loaded,
and one of the hub is in the cache.
"""
GRACE_S = 5.0


def run_detached(argv: Sequence[str], *, store_dir: Path, wait_s: float = 0.0) -> RunPaths:
    """Starts `forge ARGV` on its own. Returns its run directory; raises what it said if it ends at
    once.

    Args:
        wait_s: how long it may wait for GPUs before it has one.
    """
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
    """The run of a process: an old run may have had the same pid."""
    for path in store_dir.glob("*/STATUS.json"):
        paths = RunPaths(path.parent.resolve())
        status = read_status(paths)
        if status.get("pid") == pid and status.get("at", 0.0) >= since:
            return paths
    return None


def _ended(code: int, log_path: Path) -> ForgeError:
    """What `exits.explain` wrote last, which is one line with our name or several without."""
    said = read_last_lines(log_path, num_lines=50) or f"the run ended with {code}"
    last = said.rpartition("\n")[2]
    is_bug = code == ForgeError.exit_code
    named = last.removeprefix("forge: ")
    error = ForgeError(said if is_bug or named == last else named)
    error.exit_code = code
    log_path.unlink()
    return error
