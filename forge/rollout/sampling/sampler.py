"""Which problem is played next: a plain object with state, no clock and no task. Its state is what
resume restores.

To add one: a file of its own, a name in `[rollout] sampler`, a line in `make_sampler`; the
properties of `tests/rollout/test_samplers.py` hold for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from forge.rollout.sampling.curriculum import CurriculumSampler
from forge.rollout.sampling.priority import PrioritySampler
from forge.rollout.sampling.uniform import UniformSampler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.records import Group, Problem


class Sampler(Protocol):
    """Draws problems, and hears how each went."""

    def next(self) -> Problem:
        """The next problem. Every problem comes again and again, whatever was told."""
        ...

    def told(self, group: Group) -> None:
        """A group was played to its end; once a group, in whatever order they end."""
        ...

    def state(self) -> dict[str, Any]:
        """As JSON: what `restore` needs."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue as the one whose `state` this is, given the same problems and seed; with what
        it says of the problems that are here, where some came or went."""
        ...


def make_sampler(
    kind: Literal["uniform", "curriculum", "priority"], problems: Sequence[Problem], *, seed: int
) -> Sampler:
    """The sampler that `[rollout] sampler` names. Raises ValueError without problems."""
    if kind == "curriculum":
        return CurriculumSampler(problems, seed=seed)
    if kind == "priority":
        return PrioritySampler(problems, seed=seed)
    return UniformSampler(problems, seed=seed)
