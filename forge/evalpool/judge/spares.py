"""Runners that wait for another smoke check: their contexts are made, their predecessors gone.

Called by `gpu_trial.py`. A candidate may have changed the process for who comes next, so nothing
that counts is judged in one. They end with the zygote.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.evalpool.judge.spawner import SandboxedChild

MAX_REUSES = 64
"""Smoke checks a process serves."""
MAX_SPARES = 16


@dataclass(slots=True)
class Spare:
    """A runner, and how many candidates it has had."""

    child: SandboxedChild
    num_uses: int = 0


class Spares:
    """Runners between two smoke checks. They end with the zygote."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Spare] = []

    def take(self) -> Spare | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def keep(self, spare: Spare) -> bool:
        """Whether it is kept."""
        with self._lock:
            is_kept = spare.num_uses < MAX_REUSES and len(self._idle) < MAX_SPARES
            if is_kept:
                self._idle.append(spare)
            return is_kept
