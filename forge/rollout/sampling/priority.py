"""Problems by learning signal: those whose returns varied recently are drawn more often.

After prioritised replay (arXiv 1511.05952), with the variance of a group's returns in place of the
TD error. The advantage of a sample is the distance of its return from the group's mean, so the
variance is the mean square of the factor of the policy gradient. For a problem that was not played
yet, the variance of its family and level is the estimate.

    weight_i = FLOOR + v_i / max v + AGE_BONUS · a_i / N
    v_i   exponential moving average of the variance: of the problem, or of its family and level
    a_i   draws since the problem was last drawn
    N     number of problems
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.records import Group, Problem

FLOOR = 0.05
"""Weight of a problem without signal: the policy changes, so no problem is dropped for good."""
AGE_BONUS = 0.1
"""Weight added per N draws without the problem: a tenth of the largest variance term."""
FORGET = 0.5
"""Weight of the newest group in the moving average: about the last three groups count."""
REST = 8
"""A problem is not drawn again within N / REST draws: two of its groups would run at once."""
MAX_AGE = 4
"""A problem that was not drawn for MAX_AGE · N draws is next, whatever its weight."""

NEVER = -1
"""Marks a problem that was not drawn yet."""


class PrioritySampler:
    """Draws at random, with weights from the results so far."""

    def __init__(self, problems: Sequence[Problem], *, seed: int) -> None:
        if not problems:
            raise ValueError("a sampler needs at least one problem")
        self._problems, self._seed = problems, seed
        self._index = {problem.problem_id: i for i, problem in enumerate(problems)}
        kinds = [f"{problem.family}/{problem.level}" for problem in problems]
        self._kinds = sorted(set(kinds))
        self._kind_of = np.array([self._kinds.index(kind) for kind in kinds], dtype=int)
        self._num_drawn = 0
        self._last_drawn = np.full(len(problems), NEVER)
        self._own = np.full(len(problems), np.nan)
        self._of_kind = np.full(len(self._kinds), np.nan)
        """Recent variance of each problem, and of each family and level; nan where unknown."""

    def next(self) -> Problem:
        """The next problem: one that exceeded MAX_AGE, else one drawn by weight."""
        draw = random.Random(f"{self._seed}/{self._num_drawn}").random()
        oldest = int(np.argmax(self._ages()))
        index = oldest
        if self._ages()[oldest] < MAX_AGE * len(self._problems):
            sums = np.cumsum(self.weights())
            index = int(np.searchsorted(sums, draw * float(sums[-1]), side="right"))
        self._last_drawn[index] = self._num_drawn
        self._num_drawn += 1
        return self._problems[index]

    def observe(self, group: Group) -> None:
        """Update the variance of its problem, family and level. Masked rollouts do not count."""
        index = self._index.get(group.problem_id)
        varied = return_variance(group)
        if index is None or varied is None:
            return
        for known, at in ((self._own, index), (self._of_kind, self._kind_of[index])):
            before = float(known[at])
            mixed = (1 - FORGET) * before + FORGET * varied
            known[at] = varied if math.isnan(before) else mixed

    def state(self) -> dict[str, Any]:
        """The state for `restore`."""
        names = [problem.problem_id for problem in self._problems]
        return {
            "drawn": self._num_drawn,
            "last_drawn": {
                name: at
                for name, at in zip(names, self._last_drawn.tolist(), strict=True)
                if at != NEVER
            },
            "own": _known(names, self._own),
            "kinds": _known(self._kinds, self._of_kind),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, given the same problems and seed; with other problems,
        use what it says about those that remain."""
        self._num_drawn = int(state["drawn"])
        self._last_drawn[:], self._own[:], self._of_kind[:] = NEVER, np.nan, np.nan
        kinds = {name: i for i, name in enumerate(self._kinds)}
        for known, index, values in (
            (state["last_drawn"], self._index, self._last_drawn),
            (state["own"], self._index, self._own),
            (state["kinds"], kinds, self._of_kind),
        ):
            for name in known.keys() & index.keys():
                values[index[name]] = known[name]

    def weights(self) -> np.ndarray:
        """Weight of each problem in the next draw; 0 while it rests. [N]"""
        count, ages = len(self._problems), self._ages()
        known = np.concatenate([self._own, self._of_kind])
        largest = np.nanmax(known, initial=0.0) or 1.0
        varied = np.where(np.isnan(self._own), self._of_kind[self._kind_of], self._own)
        varied = np.where(np.isnan(varied), largest, varied)
        weights = FLOOR + varied / largest + AGE_BONUS * ages / count
        return np.where((self._last_drawn != NEVER) & (ages <= count // REST), 0.0, weights)

    def _ages(self) -> np.ndarray:
        """Draws since each problem was drawn, or since the first draw. [N]"""
        return self._num_drawn - np.maximum(self._last_drawn, 0)


def _known(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    pairs = zip(names, values.tolist(), strict=True)
    return {name: value for name, value in pairs if not math.isnan(value)}


def return_variance(group: Group) -> float | None:
    """Variance of the unmasked returns over all turns, as in the advantages; None without any."""
    values = [value for t in group.trajectories for value in t.returns if value is not None]
    if not values:
        return None
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)
