"""The CPU budget: which cores the judges share, and on which of them each child runs.

Called by the pool (`share`) and by the spawner (`Cores`). A child is held to one core, and the
kernel and seccomp keep it and all that it starts there: with eight threads it is as slow as eight,
nobody else is. So a judge's children use at most as many cores as they are, within its share.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def share(cores: Sequence[int], *, seat: int, num_seats: int, offset: int = 0) -> tuple[int, ...]:
    """Cores of one judge of `num_seats`: no core twice while there are enough, else one in turn.

    Args:
        offset: where to begin, so that two runs on one machine begin at different places.
    """
    count = len(cores)
    each = max(1, count // num_seats)
    first = seat * each + offset
    return tuple(cores[(first + number) % count] for number in range(each))


class Cores:
    """Hands out the cores of a judge, the least used first. Called from several threads."""

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = tuple(cores)
        self._lock = threading.Lock()
        self._used: Counter[int] = Counter()

    def take(self) -> int | None:
        """A core for a child; None where nothing is held to one."""
        if not self._cores:
            return None
        with self._lock:
            core = min(self._cores, key=lambda one: self._used[one])
            self._used[core] += 1
            return core

    def give_back(self, core: int | None) -> None:
        """The child that had it has ended."""
        if core is not None:
            with self._lock:
                self._used[core] -= 1
