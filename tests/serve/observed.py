"""Pids of the processes of engines, and conditions that come true."""

from collections import defaultdict
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from pathlib import Path

import anyio


class Lives:
    """A ProcessObserver that keeps the pids of all processes by name."""

    def __init__(self) -> None:
        self.pids: dict[str, list[int]] = defaultdict(list)

    def started(self, name: str, *, pid: int, devices: str, log_path: Path) -> None:
        self.pids[name].append(pid)

    def ended(self, name: str, *, pid: int, reason: str) -> None:
        assert pid in self.pids[name]


async def until(condition: Callable[[], object | Awaitable[object]], *, s: float = 60.0) -> None:
    """Polls a condition for at most `s` seconds."""
    with anyio.fail_after(s):
        while not (await found if isawaitable(found := condition()) else found):  # noqa: ASYNC110
            await anyio.sleep(0.005)
