# pyright: strict
"""Relative speed of judges, from the times of their verdicts. Pure.

    log(seconds / work) = cost of the request + slowness of the judge + noise

Requests differ more than judges: an answer to one problem takes 26 ms, to another one 5 s. So each
time is compared with earlier ones of the same kind (problem, status and options), and only kinds
that several judges have had say how fast a judge is. `seating.py` gives a slow judge fewer
requests; `pool.py` reports each change once.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable


CONTENTION = 4.0
"""Growth of a verdict's time with the share of a judge's capacity that is in use: on an H100, 104
ms alone and 463 ms beside 15 others."""
PACE_SMOOTHING = 1 / 24
"""Weight of the latest time in a judge's average, which begins as the mean."""
COST_SMOOTHING = 1 / 4
"""The same in the cost of a kind of request, of which there are few times."""
LARGEST_SURPRISE = 1.5
"""Bound of one time's deviation, as a logarithm: a pause of the machine says little."""
LEAST_TIMES = 16
"""Compared times until a judge's average counts."""
SLOW, NOT_SLOW = 2.0, 1.4
"""Slowness at which a judge becomes slow, and below which it ceases to be."""
MAX_COSTS = 4096


def work(num_running: int, capacity: int) -> float:
    """Expected time of a request that is one of `num_running` at a judge, as a multiple of its time
    alone there."""
    return 1.0 + CONTENTION * num_running / capacity


@dataclass(slots=True)
class _Average:
    """The slowness of a judge: a moving average of logarithms."""

    value: float = 0.0
    num_times: int = 0
    is_slow: bool = False


class Paces:
    """Slowness of judges by name."""

    def __init__(self) -> None:
        self._paces: dict[str, _Average] = {}
        self._costs: OrderedDict[Hashable, float] = OrderedDict()
        """Logarithm of the time of each kind of request."""

    def forget(self, name: str) -> None:
        """A judge was replaced: the new one may be on another machine."""
        self._paces.pop(name, None)

    def record(self, name: str, kind: Hashable, seconds: float) -> bool:
        """Records the time of a verdict, divided by its work. True if the judge has become slow, or
        has ceased to be."""
        pace = self._paces.setdefault(name, _Average())
        time = math.log(max(seconds, 1e-6))
        cost = self._costs.pop(kind, None)
        if cost is None:
            self._costs[kind] = time - pace.value
        else:
            surprise = time - cost - pace.value
            surprise = max(-LARGEST_SURPRISE, min(LARGEST_SURPRISE, surprise))
            self._costs[kind] = cost + COST_SMOOTHING * surprise
            pace.num_times += 1
            pace.value += max(PACE_SMOOTHING, 1 / pace.num_times) * surprise
        if len(self._costs) > MAX_COSTS:
            self._costs.popitem(last=False)
        was_slow = pace.is_slow
        pace.is_slow = self.slowness(name) >= (NOT_SLOW if was_slow else SLOW)
        return pace.is_slow is not was_slow

    def slowness(self, name: str) -> float:
        """Time of a judge's verdicts relative to the median of the others; 1 if unknown."""
        own = self._paces.get(name)
        others = [
            each.value
            for other, each in self._paces.items()
            if other != name and each.num_times >= LEAST_TIMES
        ]
        if own is None or own.num_times < LEAST_TIMES or not others:
            return 1.0
        return math.exp(own.value - statistics.median_low(others))

    def is_slow(self, name: str) -> bool:
        """True if a judge gets fewer requests."""
        return name in self._paces and self._paces[name].is_slow
