"""Measures the cost of the terminal monitor on a run of any size, in a real terminal of 80 by 24.

    .venv/bin/python bench/store.py make /tmp/big-1 --turns 1000000
    .venv/bin/python bench/tui.py /tmp/big-1 [--seconds 20] [--json]

Starts `forge tui` on a pseudo-terminal and measures, for each screen: seconds from the start of the
process to its first paint with data (Run; at most 1.5), CPU milliseconds per refresh while a row is
committed each second (at most 50), and the share of a core while nothing is written (at most 3 %).
It writes those rows, events of kind `bench`, into the run: use a run made for it. Exit code 1 if a
limit is exceeded.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_PAINT_S, REFRESH_MS, IDLE_SHARE = 1.5, 50.0, 0.03
SCREENS = {"run": "1", "problems": "2", "rollout": "3", "kernels": "4", "logs": "5", "runs": "6"}
PAINTED = b"verdicts of the last groups"
"""Last text that the Run screen draws."""
SETTLE_S = 4.0
"""Seconds after a key until the screen has queried and drawn."""
NUM_STARTS = 3
DEADLINE_S = 60.0


class Monitor:
    """`forge tui` on a pseudo-terminal, drained by a thread."""

    def __init__(self, run: Path) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.started_at = time.perf_counter()
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.child = subprocess.Popen(
            [sys.executable, "-m", "forge", "tui", str(run)],
            stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
        )  # fmt: skip
        os.close(theirs)
        self.shown = b""
        self.painted_after_s: float | None = None
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def type(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def cpu_s(self) -> float:
        """User and system CPU seconds of all its threads."""
        times = psutil.Process(self.child.pid).cpu_times()
        return times.user + times.system

    def wait_painted(self) -> float:
        """Seconds from start to the first paint with data."""
        until = time.perf_counter() + DEADLINE_S
        while self.painted_after_s is None:
            if time.perf_counter() > until or self.child.poll() is not None:
                raise SystemExit(f"forge tui did not paint: {self.shown[-2000:]!r}")
            time.sleep(0.005)
        return self.painted_after_s

    def quit(self) -> int:
        self.type("q")
        code = self.child.wait(timeout=DEADLINE_S)
        self._thread.join()
        os.close(self._ours)
        return code

    def _drain(self) -> None:
        while True:
            try:
                if not select.select([self._ours], [], [], 0.5)[0]:
                    continue
                self.shown += os.read(self._ours, 65536)
            except OSError:  # the other end is closed
                return
            if self.painted_after_s is None and PAINTED in self.shown:
                self.painted_after_s = time.perf_counter() - self.started_at


@contextmanager
def committing(run: Path) -> Iterator[list[int]]:
    """Commits an event each second; yields a list that grows by one each time."""
    done: list[int] = []
    ended = threading.Event()

    def write() -> None:
        connection = sqlite3.connect(run / "run.db", isolation_level=None)
        while not ended.wait(1.0):
            connection.execute(
                "INSERT INTO events (attempt, at, kind, message, data) "
                "VALUES (1, ?, 'bench', 'a row', '{}')",
                (time.time(),),
            )
            done.append(1)
        connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join()


def measure(run: Path, *, seconds: float) -> dict[str, Any]:
    """First paint in seconds, then idle share and milliseconds per refresh by screen."""
    paints = []
    for _ in range(NUM_STARTS):
        monitor = Monitor(run)
        paints.append(round(monitor.wait_painted(), 3))
        monitor.quit()
    monitor = Monitor(run)
    monitor.wait_painted()
    screens = {}
    for screen, key in SCREENS.items():
        monitor.type(key)
        time.sleep(SETTLE_S)
        idle_s = spend(monitor, seconds)
        with committing(run) as commits:
            busy_s = spend(monitor, seconds)
        extra_ms = 1000 * (busy_s - idle_s) / max(len(commits), 1)
        screens[screen] = {
            "idle_share": round(idle_s / seconds, 4),
            "refresh_ms": round(extra_ms, 1),
            "commits": len(commits),
        }
        print(f"{screen}: {screens[screen]}", file=sys.stderr)
    rss_bytes = psutil.Process(monitor.child.pid).memory_info().rss
    code = monitor.quit()
    return {
        "first_paint_s": paints, "screens": screens, "rss_mb": round(rss_bytes / 2**20),
        "exit_code": code,
    }  # fmt: skip


def spend(monitor: Monitor, seconds: float) -> float:
    """CPU seconds that the process uses in a given number of seconds."""
    before = monitor.cpu_s()
    time.sleep(seconds)
    return monitor.cpu_s() - before


def broken(found: dict[str, Any]) -> list[str]:
    """One line for each limit that is exceeded."""
    lines = []
    if min(found["first_paint_s"]) > FIRST_PAINT_S:
        lines.append(f"first paint {found['first_paint_s']} s, at most {FIRST_PAINT_S}")
    for screen, each in found["screens"].items():
        if each["refresh_ms"] > REFRESH_MS:
            lines.append(f"{screen}: a refresh costs {each['refresh_ms']} ms, at most {REFRESH_MS}")
        if each["idle_share"] > IDLE_SHARE:
            lines.append(f"{screen}: idle {each['idle_share']:.1%} of a core, at most 3 %")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.run, seconds=arguments.seconds)
    lines = broken(found)
    if arguments.json:
        print(json.dumps({**found, "broken": lines}))
    else:
        print(f"first paint {min(found['first_paint_s'])} s of {found['first_paint_s']}")
        for screen, each in found["screens"].items():
            print(f"{screen:9} refresh {each['refresh_ms']:6} ms  idle {each['idle_share']:.2%}")
        print(f"resident {found['rss_mb']} MB")
        print("\n".join(lines) or "all bounds hold")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
