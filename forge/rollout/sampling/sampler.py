"""The port of samplers, which choose the next problem: plain objects without clock or task. Resume
restores their state.

To add one: a file in this folder, a name for `[rollout] sampler`, a line in `make_sampler`. It must
pass the property tests in `tests/rollout/test_samplers.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from forge.rollout.sampling.curriculum import CurriculumSampler
from forge.rollout.sampling.mixture import MixtureSampler
from forge.rollout.sampling.priority import PrioritySampler
from forge.rollout.sampling.uniform import UniformSampler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.records import Group, Problem


class Sampler(Protocol):
    """Draws problems and takes their results."""

    def next(self) -> Problem:
        """The next problem. Every problem returns again and again, whatever the results."""
        ...

    def observe(self, group: Group) -> None:
        """Take the result of a finished group: once per group, in the order in which they end."""
        ...

    def state(self) -> dict[str, Any]:
        """The state for `restore`, as JSON values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state` was taken, given the same problems and seed. If problems
        were added or removed, use what it says about those that remain."""
        ...


def make_sampler(
    kind: Literal["uniform", "curriculum", "priority"],
    problems: Sequence[Problem],
    *,
    seed: int,
    weights: Mapping[str, float] | None = None,
) -> Sampler:
    """The sampler of `[rollout] sampler`, one for each source if `weights` has some of the sources;
    the weight of any other is its number of problems. Raises ValueError without problems."""
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
    if kind == "curriculum":
        return CurriculumSampler(problems, seed=seed)
    if kind == "priority":
        return PrioritySampler(problems, seed=seed)
    return UniformSampler(problems, seed=seed)
