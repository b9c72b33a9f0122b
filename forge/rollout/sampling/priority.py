"""Problems by what they teach: those whose groups' returns varied of late are drawn more often.

After prioritised replay (arXiv 1511.05952), with a group's return variance in place of the TD
error: the advantage of a sample is its return's distance from the group's mean, so the variance is
the mean square of what the policy gradient is multiplied with. A problem that was not played yet is
expected to vary as its family does at its level.

    weight_i = FLOOR + v_i / max v + AGE_BONUS · a_i / N
    v_i   recent variance: an average that forgets, of the problem or else of its family and level
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
"""Weight of a problem that gives no signal now: policies change, so none is given up."""
AGE_BONUS = 0.1
"""Added per N draws without the problem: a tenth of what the most varied one weighs."""
FORGET = 0.5
"""Share of the newest group in the average: about the last three groups count."""
REST = 8
"""A problem is not drawn again within N / REST draws: its groups would be in flight together."""
MAX_AGE = 4
"""A problem that was not drawn for MAX_AGE · N draws comes next, whatever it weighs."""

NEVER = -1
"""In place of the draw at which a problem was drawn."""


class PrioritySampler:
    """Draws at random, by weights that what is told changes."""

    def __init__(self, problems: Sequence[Problem], *, seed: int) -> None:
        if not problems:
            raise ValueError("a sampler needs at least one problem")
        self._problems, self._seed = problems, seed
        self._index = {problem.problem_id: i for i, problem in enumerate(problems)}
        kinds = [f"{problem.family}/{problem.level}" for problem in problems]
        self._kinds = sorted(set(kinds))
        self._kind_of = np.array([self._kinds.index(kind) for kind in kinds])
        self._num_drawn = 0
        self._last_drawn = np.full(len(problems), NEVER)
        self._own = np.full(len(problems), np.nan)
        self._of_kind = np.full(len(self._kinds), np.nan)
        """Recent variance of each problem, and of each family and level; nan where unknown."""

    def next(self) -> Problem:
        """The next problem: the one that waited too long, else one drawn by weight."""
        draw = random.Random(f"{self._seed}/{self._num_drawn}").random()
        oldest = int(np.argmax(self._ages()))
        index = oldest
        if self._ages()[oldest] < MAX_AGE * len(self._problems):
            sums = np.cumsum(self.weights())
            index = int(np.searchsorted(sums, draw * sums[-1], side="right"))
        self._last_drawn[index] = self._num_drawn
        self._num_drawn += 1
        return self._problems[index]

    def told(self, group: Group) -> None:
        """Remember how much its returns varied. Masked rollouts say nothing."""
        index = self._index.get(group.problem_id)
        varied = return_variance(group)
        if index is None or varied is None:
            return
        for known, at in ((self._own, index), (self._of_kind, self._kind_of[index])):
            known[at] = varied if np.isnan(known[at]) else _mixed(known[at], varied)

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
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
        """Continue where `state` was taken, given the same problems and seed. Of other problems:
        with what it knows of those that are here."""
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
        """Of each problem in the next draw; 0 while it rests. [N]"""
        count, ages = len(self._problems), self._ages()
        known = np.concatenate([self._own, self._of_kind])
        largest = np.nanmax(known, initial=0.0) or 1.0
        varied = np.where(np.isnan(self._own), self._of_kind[self._kind_of], self._own)
        varied = np.where(np.isnan(varied), largest, varied)
        weights = FLOOR + varied / largest + AGE_BONUS * ages / count
        return np.where((self._last_drawn != NEVER) & (ages <= count // REST), 0.0, weights)

    def _ages(self) -> np.ndarray:
        """Draws since each was drawn, or since the first. [N]"""
        return self._num_drawn - np.maximum(self._last_drawn, 0)


def _known(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    pairs = zip(names, values.tolist(), strict=True)
    return {name: value for name, value in pairs if not math.isnan(value)}


def return_variance(group: Group) -> float | None:
    """Variance of its unmasked returns, all turns together as the advantages have them; None where
    there is none."""
    values = [value for t in group.trajectories for value in t.returns if value is not None]
    if not values:
        return None
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


def _mixed(before: float, now: float) -> float:
    return (1 - FORGET) * before + FORGET * now
