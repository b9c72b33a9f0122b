"""All checks between the keys of a valid experiment, in one list. Called by `load`.

Each check is a generator of mistakes. Checks ask the file system and the environment only; the
machine's GPUs, memory and disk are checked by `runner.plan`.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import chain
from typing import TYPE_CHECKING

from forge.config.checks.machines import (
    check_cluster,
    check_devices,
    check_judge_url,
    check_outlets,
    check_pinning,
    check_serve_url,
)
from forge.config.checks.problems import check_data, check_problems
from forge.config.checks.training import (
    check_function,
    check_improvement,
    check_lengths,
    check_model,
    check_order,
    check_overlap,
    check_prompt,
    check_tiny,
    check_training,
)

if TYPE_CHECKING:
    from forge.config.checks.mistake import Mistake
    from forge.config.schema import Experiment, KeyPath

CHECKS = (
    check_model,
    check_tiny,
    check_problems,
    check_data,
    check_prompt,
    check_lengths,
    check_order,
    check_training,
    check_devices,
    check_judge_url,
    check_cluster,
    check_function,
    check_improvement,
    check_serve_url,
    check_overlap,
    check_pinning,
    check_outlets,
)


def check(
    experiment: Experiment, *, mistaken: Set[KeyPath] = frozenset(), is_here: bool = True
) -> list[Mistake]:
    """All mistakes between keys.

    Args:
        experiment: valid key by key.
        mistaken: keys to skip, since their values here are only defaults.
        is_here: False if it will run on another machine, so missing files are not mistakes.
    """
    return [
        each
        for each in chain.from_iterable(part(experiment) for part in CHECKS)
        if each.path not in mistaken and (is_here or not each.is_about_here)
    ]
