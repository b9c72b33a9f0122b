"""Several sources of problems, drawn with given weights; a sampler of its own for each source.

A source of weight 2 is drawn twice as often as one of weight 1, whatever their numbers of problems.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.records import Group, Problem
    from forge.rollout.sampling.sampler import Sampler


class MixtureSampler:
    """Draws a source by weight, then a problem with the source's sampler."""

    def __init__(
        self,
        parts: Mapping[str, Sampler],
        *,
        weights: Mapping[str, float],
        origins: Mapping[str, str],
        seed: int,
    ) -> None:
        """Args:
        parts: samplers by source.
        weights: positive weights by source.
        origins: sources by problem id.
        """
        if not parts:
            raise ValueError("a sampler needs at least one problem")
        self._parts, self._origins, self._seed = parts, origins, seed
        self._names = list(parts)
        self._weights = [weights[name] for name in self._names]
        self._num_drawn = 0

    def next(self) -> Problem:
        """The next problem."""
        draw = random.Random(f"{self._seed}/source/{self._num_drawn}")
        self._num_drawn += 1
        (name,) = draw.choices(self._names, self._weights)
        return self._parts[name].next()

    def observe(self, group: Group) -> None:
        """Pass the result to the sampler of its source."""
        origin = self._origins.get(group.problem_id)
        if origin is not None:
            self._parts[origin].observe(group)

    def state(self) -> dict[str, Any]:
        """The state for `restore`."""
        parts = {name: part.state() for name, part in self._parts.items()}
        return {"drawn": self._num_drawn, "parts": parts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; sources that it lacks start from the beginning."""
        self._num_drawn = int(state["drawn"])
        for name, part in self._parts.items():
            if (known := state["parts"].get(name)) is not None:
                part.restore(known)
