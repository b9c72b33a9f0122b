"""Choice of problems for SFT, GRPO and evaluation. Called by the runner."""

from __future__ import annotations

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
