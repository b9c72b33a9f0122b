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

import random
from itertools import accumulate
from typing import TYPE_CHECKING, Any

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


class PrioritySampler:
    """Draws at random, by weights that what is told changes."""

    def __init__(self, problems: Sequence[Problem], *, seed: int) -> None:
        if not problems:
            raise ValueError("a sampler needs at least one problem")
        self._problems, self._seed = problems, seed
        self._index = {problem.problem_id: i for i, problem in enumerate(problems)}
        self._num_drawn = 0
        self._last_drawn: dict[int, int] = {}
        """By index; absent for one that was never drawn."""
        self._own: dict[int, float] = {}
        self._kind: dict[str, float] = {}
        """Recent variance by problem, and by family and level."""

    def next(self) -> Problem:
        """The next problem: the one that waited too long, else one drawn by weight."""
        draw = random.Random(f"{self._seed}/{self._num_drawn}")
        index = self._overdue()
        if index is None:
            sums = list(accumulate(self.weights()))
            index = draw.choices(range(len(sums)), cum_weights=sums)[0]
        self._last_drawn[index] = self._num_drawn
        self._num_drawn += 1
        return self._problems[index]

    def told(self, group: Group) -> None:
        """Remember how much its returns varied. Masked rollouts say nothing."""
        index = self._index.get(group.problem_id)
        varied = return_variance(group)
        if index is None or varied is None:
            return
        kind = _kind(self._problems[index])
        self._own[index] = _mixed(self._own.get(index), varied)
        self._kind[kind] = _mixed(self._kind.get(kind), varied)

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        return {
            "drawn": self._num_drawn,
            "last_drawn": {self._problems[i].problem_id: at for i, at in self._last_drawn.items()},
            "own": {self._problems[i].problem_id: v for i, v in self._own.items()},
            "kind": dict(self._kind),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, given the same problems and seed."""
        self._num_drawn = int(state["drawn"])
        self._last_drawn = {self._index[name]: int(at) for name, at in state["last_drawn"].items()}
        self._own = {self._index[name]: float(v) for name, v in state["own"].items()}
        self._kind = {name: float(v) for name, v in state["kind"].items()}

    def weights(self) -> list[float]:
        """Of each problem in the next draw, in their order; 0 while it rests."""
        count = len(self._problems)
        largest = max([*self._own.values(), *self._kind.values()], default=0.0) or 1.0
        rest = count // REST
        weights: list[float] = []
        for index, problem in enumerate(self._problems):
            age = self._age(index)
            if age <= rest and index in self._last_drawn:
                weights.append(0.0)
                continue
            varied = self._own.get(index, self._kind.get(_kind(problem), largest))
            weights.append(FLOOR + varied / largest + AGE_BONUS * age / count)
        return weights

    def _overdue(self) -> int | None:
        if self._num_drawn < MAX_AGE * len(self._problems):
            return None
        oldest = max(range(len(self._problems)), key=self._age)
        return oldest if self._age(oldest) >= MAX_AGE * len(self._problems) else None

    def _age(self, index: int) -> int:
        return self._num_drawn - self._last_drawn.get(index, 0)


def return_variance(group: Group) -> float | None:
    """Variance of its unmasked returns, all turns together as the advantages have them; None where
    there is none."""
    values = [value for t in group.trajectories for value in t.returns if value is not None]
    if not values:
        return None
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


def _mixed(before: float | None, now: float) -> float:
    return now if before is None else (1 - FORGET) * before + FORGET * now


def _kind(problem: Problem) -> str:
    return f"{problem.family}/{problem.level}"
