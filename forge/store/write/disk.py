"""Free disk space, checked by the writer's thread and read by its callers."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CHECK_S = 1.0
"""Seconds between two checks."""


class Disk:
    """Checks at most once a second; `problem` is one line, or None while there is space."""

    def __init__(self, root: Path, *, least_free_bytes: int) -> None:
        self._root = root
        self._least_free_bytes = least_free_bytes
        self._checked_at = 0.0
        self.problem: str | None = None

    def check(self, now: float) -> None:
        """Updates `problem`; `now` is monotonic, in seconds."""
        if now - self._checked_at < CHECK_S:
            return
        self._checked_at = now
        free, least = free_bytes(self._root), self._least_free_bytes
        self.problem = None
        if free < least:
            self.problem = (
                f"{self._root}: disk nearly full: {free // 1_000_000} MB free, [store] "
                f"min_free_bytes is {least // 1_000_000} MB; nothing is lost, "
                f'"forge resume {self._root.name}" continues'
            )


def free_bytes(path: Path) -> int:
    """Bytes available to this user; 0 for a missing directory."""
    return shutil.disk_usage(path).free if os.path.isdir(path) else 0
