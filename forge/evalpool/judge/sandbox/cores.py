"""The CPU budget of one judge: on which of its cores each child runs.

Called by the spawner; the pool divides the cores among judges (`evalpool/capacity.py`). A child is
held to one core, and the kernel and seccomp keep it there with everything that it starts: with
eight threads it is as slow as eight, and nothing else is. So a judge's children use at most as many
cores as there are children, within the judge's share. An oracle, in which no candidate's code runs,
has the whole share: its judge waits for it, and a draw of large tensors has work for all of them.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Cores:
    """Hands out the cores of a judge, the least used first. Called from several threads."""

    def __init__(self, cores: Sequence[int]) -> None:
        self.every = tuple(cores)
        """The judge's share."""
        self._lock = threading.Lock()
        self._used: Counter[int] = Counter()

    def take(self) -> int | None:
        """A core for a child; None where nothing is held to one."""
        if not self.every:
            return None
        with self._lock:
            core = min(self.every, key=lambda one: self._used[one])
            self._used[core] += 1
            return core

    def give_back(self, core: int | None) -> None:
        """The child that had it has ended."""
        if core is not None:
            with self._lock:
                self._used[core] -= 1
