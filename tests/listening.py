"""Servers of the command line for tests: `forge serve` and `forge judge --serve`."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


def start(*argv: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
    """A `forge` command of this checkout, whose stderr is read."""
    return subprocess.Popen(
        [sys.executable, "-m", "forge", *argv],
        cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | env,
    )  # fmt: skip


@contextmanager
def listening(
    *argv: str, cwd: Path | None = None, **env: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL that a server prints in its first line, and its process, which is ended on exit."""
    process = start(*argv, cwd=cwd, **env)
    try:
        line = process.stderr.readline()
        found = re.search(r'url = \["([^"]+)"\]', line)
        assert found, line + process.stderr.read()
        yield found[1], process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=20)
        process.stderr.close()
