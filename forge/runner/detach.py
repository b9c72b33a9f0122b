"""`forge run -d`: the supervisor in a session of its own, and the terminal free again once the run
has a directory.

The detached process is the same command without `-d`. What it says until then, and afterwards, is
in a log beside the run directories.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from forge.errors import ForgeError, Stalled
from forge.process.logtail import read_last_lines
from forge.store.layout import RunPaths, read_status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

START_TIMEOUT_S = 60.0
"""Until the run directory has its STATUS.json: the machine is checked before, no model is loaded.
"""


def run_detached(argv: Sequence[str], *, store_dir: Path) -> RunPaths:
    """Starts `forge ARGV` on its own. Returns its run directory; raises what it said if it ends at
    once.
    """
    store_dir.mkdir(parents=True, exist_ok=True)
    log_path = store_dir / f"detached-{time.time_ns()}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "forge.cli", *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if (paths := _run_of(process.pid, store_dir)) is not None:
            log_path.rename(paths.root / "logs" / "console.log")
            return paths
        if process.poll() is not None:
            raise _ended(process.returncode, log_path)
        time.sleep(0.05)
    process.terminate()
    raise Stalled(f"the detached run was silent for {START_TIMEOUT_S:.0f} s; see {log_path}")


def _run_of(pid: int, store_dir: Path) -> RunPaths | None:
    for path in store_dir.glob("*/STATUS.json"):
        paths = RunPaths(path.parent.resolve())
        if read_status(paths).get("pid") == pid:
            return paths
    return None


def _ended(code: int, log_path: Path) -> ForgeError:
    error = ForgeError(read_last_lines(log_path, num_lines=50) or f"the run ended with {code}")
    error.exit_code = code
    log_path.unlink()
    return error
