"""Runs one command of setup: its output goes to a log, and line by line to the progress, which is
read from the output of pip and ninja.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from forge.errors import MachineError

SILENT_S = 1800.0
"""Maximum time without output. pip prints nothing during a download, and CUDA builds are large."""
GRACE_S = 5.0
"""Time for pip to clean up after an interrupt."""


PLAIN_EVERY_S = 30.0
"""Time between two lines if stderr is not a terminal."""


class InstallProgress:
    """One line that is rewritten on a terminal, or a line every 30 s elsewhere."""

    def __init__(self, label: str, *, stream: IO[str], now: float) -> None:
        self.label = label
        self._stream = stream
        self._began = self._shown = now
        self._activity = ""
        self._is_live = stream.isatty()
        self._line(now)

    def read(self, line: str, *, now: float) -> None:
        """Reads one line of output from pip or the compiler."""
        activity = describe(line, elapsed_s=now - self._began)
        if activity and activity != self._activity:
            was_compiling = self._activity.startswith("compiling")
            self._activity = activity
            if self._is_live or (activity.startswith("compiling") and not was_compiling):
                self._line(now)

    def tick(self, *, now: float) -> None:
        """Updates the time; called at least once a second."""
        if self._is_live or now - self._shown >= PLAIN_EVERY_S:
            self._line(now)

    def end(self, *, now: float) -> None:
        """Ends the line: the step is done."""
        self._activity = ""
        self._line(now, end="\n")

    def _line(self, now: float, end: str = "") -> None:
        self._shown = now
        activity = f": {self._activity}" if self._activity else ""
        text = f"{self.label}{activity} ({now - self._began:.0f} s)"
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{text[:width]}{end}" if self._is_live else text + "\n")
        self._stream.flush()


def describe(line: str, *, elapsed_s: float) -> str | None:
    """Progress in a line of output, or None. ninja prints `[17/204] …`."""
    counted = re.match(r"\s*\[(\d+)/(\d+)\] ", line)
    if counted:
        done, total = int(counted.group(1)), int(counted.group(2))
        left_s = elapsed_s / max(done, 1) * (total - done)
        bar = "#" * (20 * done // total)
        return f"compiling llama.cpp [{bar:<20}] {done}/{total}, about {left_s:.0f} s left"
    step = re.match(
        r"\s*(Collecting|Downloading|Building wheel for|Installing collected) (\S+)", line
    )
    if step is None:
        return None
    return "installing" if step.group(1) == "Installing collected" else " ".join(step.groups())


def run_command(
    argv: Sequence[str], *, env: Mapping[str, str], log: IO[bytes], progress: InstallProgress
) -> int:
    """Runs a command in a new process group, so that its compilers end with it.

    Returns the exit code. Raises MachineError after SILENT_S without output.
    """
    process = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        with process.stdout as output:
            _pump(output, log=log, progress=progress)
        return process.wait(timeout=GRACE_S)
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGINT, so that pip removes its temporary directories, then kills the whole group."""
    os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=GRACE_S)


def _pump(source: IO[bytes], *, log: IO[bytes], progress: InstallProgress) -> None:
    """Copies the output to the log and to the progress until it ends."""
    last_output, rest = time.monotonic(), b""
    while True:
        ready, _, _ = select.select([source], [], [], 1.0)
        now = time.monotonic()
        progress.tick(now=now)
        if not ready:
            if now - last_output > SILENT_S:
                progress.end(now=now)
                raise MachineError(f"{progress.label}: pip was silent for {SILENT_S:.0f} s")
            continue
        chunk = os.read(source.fileno(), 1 << 16)
        if not chunk:
            return
        last_output = now
        log.write(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            progress.read(line.decode(errors="replace"), now=now)
