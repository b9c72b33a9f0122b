"""A Ray cluster of several nodes on this machine, for tests that have the package ray."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from forge.errors import pip_install

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason=f"ray is not installed: {pip_install('ray')}",
)
SCRIPT = Path(__file__).parent / "local_nodes.py"


class LocalNodes:
    """Nodes in a process of their own, which `local_nodes.py` drives."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._read()

    def add(self, label: str, *, cpus: int = 1) -> int:
        """Start a node; returns its number."""
        return int(self._say(f"add {label} {cpus}").split()[1])

    def kill(self, number: int) -> None:
        """End a node with SIGKILL."""
        self._say(f"kill {number}")

    def children(self) -> list[str]:
        """Commands of the living children of forge's hosts."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        found: list[str] = []
        for each in below:
            try:
                command = " ".join(each.cmdline())
            except psutil.Error:  # ended since
                continue
            if "-m forge." in command:
                found.append(command)
        return found

    def _say(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "local_nodes.py ended"
        return line


@contextmanager
def local_nodes() -> Iterator[LocalNodes]:
    """A cluster whose head is this machine's node, until the context ends."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield LocalNodes(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
