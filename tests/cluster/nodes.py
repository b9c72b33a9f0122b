"""A Ray cluster of several nodes on this machine, for tests that have the package ray."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from forge.errors import pip_install

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason=f"ray is not installed: {pip_install('ray')}"
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

    def holder(self, module: str) -> int:
        """The node that has a child running this module."""
        pid = next(pid for pid, each in self.pids().items() if f"-m {module} " in each)
        return int(self._say(f"holder {pid}").split()[1])

    def signal(self, number: int, signum: int) -> None:
        """Send a signal to all processes of a node."""
        raylet = psutil.Process(int(self._say(f"raylet {number}").split()[1]))
        for each in (raylet, *raylet.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signum)

    def num_actors(self) -> int:
        """Number of living actors, of any run."""
        return int(self._say("actors").split()[1])

    def children(self) -> list[str]:
        """Commands of the living children of forge's hosts."""
        return list(self.pids().values())

    def pids(self) -> dict[int, str]:
        """Their commands by pid."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        found: dict[int, str] = {}
        for each in below:
            try:
                command = " ".join(each.cmdline())
            except psutil.Error:  # ended since
                continue
            if "-m forge." in command:
                found[each.pid] = command
        return found

    def _say(self, line: str) -> str:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        line = self._process.stdout.readline().strip()
        assert line, "local_nodes.py ended"
        return line


@contextmanager
def local_nodes(
    env: Mapping[str, str] | None = None, *, store_mb: int = 80
) -> Iterator[LocalNodes]:
    """A cluster whose head is this machine's node, until the context ends. `env` is added to the
    environment of the nodes. `store_mb`: size of each node's object store."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(store_mb)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
    ) as process:  # fmt: skip
        try:
            yield LocalNodes(process)
        finally:
            process.stdin.close()
            process.wait(60)
