"""Choice of problems for SFT, GRPO and evaluation. Called by the runner."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from forge.records import Problem, Split

if TYPE_CHECKING:
    from collections.abc import Sequence


def in_split(problems: Sequence[Problem], split: Split) -> list[Problem]:
    """The problems of a split; for HELDOUT of an undivided directory, all of them."""
    found = [problem for problem in problems if problem.split is split]
    if not found and split is Split.HELDOUT:
        return list(problems)
    return found


def choose_heldout(num_problems: int, *, num_heldout: int, seed: int) -> frozenset[int]:
    """Indices kept for evaluation; none if there are too few problems: then all serve both."""
    if num_problems < 2 * num_heldout:
        return frozenset()
    return frozenset(Random(seed).sample(range(num_problems), num_heldout))
