"""Runs one command of setup: its output goes to a log, and line by line to the progress."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from forge.errors import MachineError

if TYPE_CHECKING:
    from forge.install.progress import InstallProgress

SILENT_S = 1800.0
"""Maximum time without output. pip prints nothing during a download, and CUDA builds are large."""
GRACE_S = 5.0
"""Time for pip to clean up after an interrupt."""


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
