"""An observer of processes for tests that kill them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Pids:
    """A ProcessObserver that keeps the pids of all processes."""

    def __init__(self) -> None:
        self.all: list[int] = []

    def started(self, name: str, *, pid: int, devices: str, log_path: Path) -> None:
        self.all.append(pid)

    def ended(self, name: str, *, pid: int, reason: str) -> None:
        assert pid in self.all
