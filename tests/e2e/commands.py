"""The command line as a user runs it, and the processes of a run."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any


def forge(*args: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command that ends with this code."""
    done = subprocess.run(
        [sys.executable, "-m", "forge", *args],
        cwd=cwd, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


def start(cwd: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "forge", *args],
        cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.1)


def until(process: subprocess.Popen[str], condition: Callable[[], bool], *, what: str) -> None:
    """Waits for a condition while a process runs; its end before is a failure."""
    wait_for(lambda: condition() or process.poll() is not None, timeout_s=200, what=what)
    assert process.poll() is None, process.communicate()[1]


def kill(run: subprocess.Popen[str], root: Path) -> None:
    """Ends a run by SIGKILL, and waits until its children have ended."""
    run.send_signal(signal.SIGKILL)
    run.communicate()
    wait_for(lambda: not children_of_run(root), timeout_s=20, what="the children to end")


def children_of_run(root: Path) -> list[int]:
    """Recorded pids of a run that are alive."""
    with closing(sqlite3.connect(f"file:{root}/run.db?mode=ro", uri=True)) as db:
        pids = [pid for (pid,) in db.execute("SELECT pid FROM processes")]
    return [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def last_trained(root: Path) -> int:
    return max((step for (step,) in so_far(root, "SELECT step FROM sample_uses")), default=0)


def so_far(root: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    """Rows of a run; none while it has no tables."""
    try:
        with opened(root) as db:
            return db.execute(query, values).fetchall()
    except sqlite3.OperationalError:
        return []


@contextmanager
def opened(root: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(f"file:{root}/run.db?mode=ro", uri=True)
    try:
        yield db
    finally:
        db.close()
