"""Problems in turn: each epoch visits every one once, in an order of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.records import Group, Problem


@dataclass(slots=True)
class UniformSampler:
    """Each epoch visits every problem once, in an order of its own drawn from the seed."""

    problems: Sequence[Problem]
    seed: int | str
    epoch: int = 0
    position: int = 0
    _order: list[int] = field(default_factory=list)

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

    def told(self, group: Group) -> None:
        """How a problem went changes nothing here."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        return {"epoch": self.epoch, "position": self.position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, given the same problems and seed."""
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._shuffle()

    def _shuffle(self) -> None:
        self._order = list(range(len(self.problems)))
        random.Random(f"{self.seed}/{self.epoch}").shuffle(self._order)
