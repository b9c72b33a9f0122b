"""Problems by level: the lowest level first, the next one after most of it is solved.

    level 1 ──▶ half of its recent rollouts solved ──▶ levels 1 and 2 ──▶ ...

Most draws come from the highest open level (the frontier), the others from lower levels, so that
the model keeps what it learned. A level that stays too hard still opens the next one after a while,
so that every problem is reached.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Any

from forge.rollout.sampling.uniform import UniformSampler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.records import Group, Problem

WINDOW = 16
"""Groups in the frontier's pass rate: with 8 rollouts each, the standard error of a rate of one
half is 4 points."""
MASTERED = 0.5
"""Mean share of solved rollouts that opens the next level. Most groups have both solved and
unsolved rollouts at this share; a higher threshold would only add flat groups."""
PATIENCE = 128
"""Groups of the frontier after which the next level opens in any case: 16 steps of 8 groups."""
REHEARSAL = 0.25
"""Share of draws from levels below the frontier."""


class CurriculumSampler:
    """Opens levels one after another; within a level, draws every problem once per epoch."""

    def __init__(self, problems: Sequence[Problem], *, seed: int) -> None:
        if not problems:
            raise ValueError("a sampler needs at least one problem")
        self._seed = seed
        self._level_of = {problem.problem_id: problem.level for problem in problems}
        self._levels = sorted({problem.level for problem in problems})
        self._within = {
            level: UniformSampler([p for p in problems if p.level == level], f"{seed}/{level}")
            for level in self._levels
        }
        self._open = 1
        self._num_drawn = 0
        self._num_told = 0
        self._rates: deque[float] = deque(maxlen=WINDOW)

    @property
    def frontier(self) -> int:
        """The highest open level."""
        return self._levels[self._open - 1]

    def next(self) -> Problem:
        """The next problem of the frontier, or sometimes of a lower level."""
        draw = random.Random(f"{self._seed}/{self._num_drawn}")
        self._num_drawn += 1
        level = self.frontier
        if self._open > 1 and draw.random() < REHEARSAL:
            level = draw.choice(self._levels[: self._open - 1])
        return self._within[level].next()

    def observe(self, group: Group) -> None:
        """Count a group of the frontier, and open the next level when it is due."""
        rate = solved_share(group)
        level = self._level_of.get(group.problem_id)
        if rate is None or level != self.frontier or self._open == len(self._levels):
            return
        self._rates.append(rate)
        self._num_told += 1
        is_mastered = len(self._rates) == WINDOW and sum(self._rates) >= MASTERED * WINDOW
        if is_mastered or self._num_told >= PATIENCE:
            self._open, self._num_told = self._open + 1, 0
            self._rates.clear()

    def state(self) -> dict[str, Any]:
        """The state for `restore`."""
        return {
            "open": self._open,
            "drawn": self._num_drawn,
            "told": self._num_told,
            "rates": list(self._rates),
            "within": {str(level): each.state() for level, each in self._within.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, given the same problems and seed. Levels that it lacks
        start from the beginning."""
        self._open = min(int(state["open"]), len(self._levels))
        self._num_drawn = int(state["drawn"])
        self._num_told = int(state["told"])
        self._rates = deque(state["rates"], maxlen=WINDOW)
        for level, each in self._within.items():
            if (within := state["within"].get(str(level))) is not None:
                each.restore(within)


def solved_share(group: Group) -> float | None:
    """Share of rollouts with a correct turn; None if all of them are masked."""
    rollouts = [t for t in group.trajectories if not t.end.is_masked]
    if not rollouts:
        return None
    return sum(any(turn.verdict.is_correct for turn in t.turns) for t in rollouts) / len(rollouts)
