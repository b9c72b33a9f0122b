"""SFT rows whose problem is held out: refused or left out, by `problems.duplicates`.

Called by `prepare.py` once, when the rows of a file are read. Rows are compared with held-out
problems by the normal form of the code in their messages, so that another name or size is found.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forge.config.schema import EvalStage, Experiment, GrpoStage, SftStage
from forge.data.sources.normal_form import digests_asked
from forge.data.sources.splitting import clash, digests_of_heldout
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.records import Pair, Problem

logger = logging.getLogger(__name__)


def without_heldout(
    pairs: Sequence[Pair], problems: Sequence[Problem], experiment: Experiment
) -> list[Pair]:
    """The rows to train on. Takes up to a second per thousand rows.

    Raises:
        ConfigError: a row asks for the code of a held-out problem, or all rows do.
    """
    table, path = experiment.problems, experiment.data.path
    heldout = digests_of_heldout(problems)
    if table.duplicates == "allow" or not heldout or not _evaluates_after_sft(experiment):
        return list(pairs)
    clashes: dict[int, str] = {}
    for index, pair in enumerate(pairs):
        found = digests_asked(pair.messages) & heldout.keys()
        if found:
            clashes[index] = heldout[min(found)]
    if not clashes:
        return list(pairs)
    first, name = next(iter(clashes.items()))
    text = clash(f"row {pairs[first].problem_id}", name, num=len(clashes))
    if table.duplicates == "refuse" or len(clashes) == len(pairs):
        raise ConfigError(f"data.path: {path}: {text}")
    logger.info("%d rows from %s left out, as duplicates of held-out problems", len(clashes), path)
    return [pair for index, pair in enumerate(pairs) if index not in clashes]


def _evaluates_after_sft(experiment: Experiment) -> bool:
    """True if rows are trained on, and held-out problems are played after that."""
    stages = experiment.stage
    first = next((i for i, stage in enumerate(stages) if isinstance(stage, SftStage)), None)
    return first is not None and any(
        isinstance(stage, EvalStage) or (isinstance(stage, GrpoStage) and experiment.eval.every)
        for stage in stages[first + 1 :]
    )
