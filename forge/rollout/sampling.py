"""Samplers choose the next problem: `uniform`, `priority` by the spread of a problem's returns, and
mixtures of sources. Plain objects without clock or task. Resume restores their state.

To add one: a class that is a `Sampler`, a name for `[rollout] sampler`, a line in `make_sampler`.
It must pass the property tests in `tests/rollout/test_samplers.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from forge.records import Group, Problem


class Sampler:
    def next(self) -> Problem:
        """The next problem. Every problem returns again and again, whatever the results."""
        raise NotImplementedError

    def observe(self, group: Group) -> None:
        """Take the result of a finished group, without masked rollouts: once per group, in the
        order in which they end."""
        if (varied := return_variance(group)) is not None:
            self.learn(group.problem_id, varied)

    def learn(self, problem_id: str, varied: float) -> None:
        """Take the variance of the returns of a group, oldest first."""

    def state(self) -> dict[str, Any]:
        """The state for `restore`, as JSON values."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state` was taken, given the same problems and seed. If problems
        were added or removed, use what it says about those that remain."""
        raise NotImplementedError


@dataclass(slots=True)
class UniformSampler(Sampler):
    """Draws every problem once per epoch, in an order that depends on seed and epoch."""

    problems: Sequence[Problem]
    seed: int
    epoch: int = 0
    position: int = 0
    _order: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self._shuffle()

    def next(self) -> Problem:
        if self.position >= len(self.problems):
            self.epoch, self.position = self.epoch + 1, 0
            self._shuffle()
        problem = self.problems[self._order[self.position]]
        self.position += 1
        return problem

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._shuffle()

    def _shuffle(self) -> None:
        self._order = list(range(len(self.problems)))
        random.Random(f"{self.seed}/{self.epoch}").shuffle(self._order)


FLOOR = 0.05
"""Weight of a problem without signal: the policy changes, so no problem is dropped for good."""
FLAT = 0.05
"""Share of the largest variance below which a problem's next group is expected to be flat: not
solved at all, or solved alike by every rollout."""
FLAT_SHARE = 0.1
"""Largest weight of all such problems together, as a share of the weight of the others."""
AGE_BONUS = 0.1
"""Weight added per N draws without the problem: a tenth of the largest variance term."""
FORGET = 0.5
"""Weight of the newest group in the moving average: about the last three groups count."""
REST = 8
"""A problem is not drawn again within N / REST draws: two of its groups would run at once. Where
few problems have a signal, within half of their number: else the others would be played instead."""
MAX_AGE = 4
"""A problem that was not drawn for MAX_AGE · N draws is next, whatever its weight."""

NEVER = -1


class PrioritySampler(Sampler):
    """Draws problems whose returns varied recently more often.

    After prioritised replay (arXiv 1511.05952), with the variance of a group's returns in place of
    the TD error. The advantage of a sample is the distance of its return from the group's mean, so
    the variance is the mean square of the factor of the policy gradient. For a problem that was not
    played yet, the variance of its family and level is the estimate.

        weight_i = FLOOR + v_i / max v + AGE_BONUS · a_i / N
        v_i   exponential moving average of the variance: of the problem, or of its family and level
        a_i   draws since the problem was last drawn
        N     number of problems

    Problems whose groups are expected to be flat share FLAT_SHARE of the others' weight: most of
    many problems may be too hard, or solved.
    """

    def __init__(self, problems: Sequence[Problem], *, seed: int) -> None:
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
        draw = random.Random(f"{self._seed}/{self._num_drawn}").random()
        oldest = int(np.argmax(self._ages()))
        index = oldest
        if self._ages()[oldest] < MAX_AGE * len(self._problems):
            sums = np.cumsum(self.weights())
            index = int(np.searchsorted(sums, draw * float(sums[-1]), side="right"))
        self._last_drawn[index] = self._num_drawn
        self._num_drawn += 1
        return self._problems[index]

    def learn(self, problem_id: str, varied: float) -> None:
        index = self._index.get(problem_id)
        if index is None:
            return
        for known, at in ((self._own, index), (self._of_kind, self._kind_of[index])):
            before = float(known[at])
            mixed = (1 - FORGET) * before + FORGET * varied
            known[at] = varied if math.isnan(before) else mixed

    def state(self) -> dict[str, Any]:
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
        flat = varied < FLAT * largest
        rest = min(count // REST, int(np.sum(~flat)) // 2 if np.any(~flat) else count)
        weights[(self._last_drawn != NEVER) & (ages <= rest)] = 0.0
        most = FLAT_SHARE * float(np.sum(weights[~flat]))
        if most:
            weights[flat] *= most / max(most, float(np.sum(weights[flat])))
        return weights

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


class MixtureSampler(Sampler):
    """Draws a source by weight, then a problem with the source's sampler.

    A source of weight 2 is drawn twice as often as one of weight 1, whatever their numbers of
    problems.
    """

    def __init__(
        self, parts: Mapping[str, Sampler], *, weights: Mapping[str, float],
        origins: Mapping[str, str], seed: int,
    ) -> None:  # fmt: skip
        """Samplers and positive weights by source; `origins`: sources by problem id."""
        self._parts, self._origins, self._seed = parts, origins, seed
        self._names = list(parts)
        self._weights = [weights[name] for name in self._names]
        self._num_drawn = 0

    def next(self) -> Problem:
        draw = random.Random(f"{self._seed}/source/{self._num_drawn}")
        self._num_drawn += 1
        (name,) = draw.choices(self._names, self._weights)
        return self._parts[name].next()

    def learn(self, problem_id: str, varied: float) -> None:
        if (origin := self._origins.get(problem_id)) is not None:
            self._parts[origin].learn(problem_id, varied)

    def state(self) -> dict[str, Any]:
        parts = {name: part.state() for name, part in self._parts.items()}
        return {"drawn": self._num_drawn, "parts": parts}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._num_drawn = int(state["drawn"])
        for name, part in self._parts.items():
            if (known := state["parts"].get(name)) is not None:
                part.restore(known)


def make_sampler(
    kind: Literal["uniform", "priority"], problems: Sequence[Problem], *, seed: int,
    weights: Mapping[str, float] | None = None,
) -> Sampler:  # fmt: skip
    """The sampler of `[rollout] sampler`, one for each source if `weights` has some of the sources;
    the weight of any other is its number of problems. Raises ValueError without problems."""
    if not problems:
        raise ValueError("a sampler needs at least one problem")
    if weights:
        by_origin: dict[str, list[Problem]] = {}
        for problem in problems:
            by_origin.setdefault(problem.origin, []).append(problem)
        return MixtureSampler(
            {name: make_sampler(kind, part, seed=seed) for name, part in by_origin.items()},
            weights={name: weights.get(name, len(part)) for name, part in by_origin.items()},
            origins={problem.problem_id: problem.origin for problem in problems},
            seed=seed,
        )
    if kind == "priority":
        return PrioritySampler(problems, seed=seed)
    return UniformSampler(problems, seed=seed)
