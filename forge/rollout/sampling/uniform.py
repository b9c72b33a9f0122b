"""Every problem once per epoch, in a new random order each time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.records import Group, Problem


@dataclass(slots=True)
class UniformSampler:
    """Draws every problem once per epoch, in an order that depends on seed and epoch."""

    problems: Sequence[Problem]
    seed: int | str
    epoch: int = 0
    position: int = 0
    _order: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        if not self.problems:
            raise ValueError("a sampler needs at least one problem")
        self._shuffle()

    def next(self) -> Problem:
        """The next problem."""
        if self.position >= len(self.problems):
            self.epoch, self.position = self.epoch + 1, 0
            self._shuffle()
        problem = self.problems[self._order[self.position]]
        self.position += 1
        return problem

    def observe(self, group: Group) -> None:
        """Changes nothing: results do not matter here."""

    def state(self) -> dict[str, Any]:
        """The state for `restore`."""
        return {"epoch": self.epoch, "position": self.position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, given the same problems and seed."""
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._shuffle()

    def _shuffle(self) -> None:
        self._order = list(range(len(self.problems)))
        random.Random(f"{self.seed}/{self.epoch}").shuffle(self._order)
