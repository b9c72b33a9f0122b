"""Which parts of forge an experiment needs, by its stages alone. Asked by `plan`, `placement` and
`run`, so that what is planned is what is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.schema import EvalStage, SftStage

if TYPE_CHECKING:
    from forge.config.schema import Experiment


def needs_serving(experiment: Experiment) -> bool:
    """Whether any stage generates."""
    return any(not isinstance(stage, SftStage) for stage in experiment.stage)


def needs_training(experiment: Experiment) -> bool:
    """Whether any stage trains."""
    return any(not isinstance(stage, EvalStage) for stage in experiment.stage)


def needs_pairs(experiment: Experiment) -> bool:
    """Whether any stage trains on pairs, or a tokenizer has to be trained on their texts."""
    return (
        any(isinstance(stage, SftStage) for stage in experiment.stage)
        or experiment.model.init is not None
    )


def makes_pairs(experiment: Experiment) -> bool:
    """Whether the generator makes them, whose broken answers are judged."""
    return needs_pairs(experiment) and experiment.data.source == "generated"


def needs_judges(experiment: Experiment) -> bool:
    """Whether anything is judged: what stages generate, or the broken answers of made pairs."""
    return needs_serving(experiment) or makes_pairs(experiment)


def turns_played(experiment: Experiment) -> int:
    """Of the longest rollouts, in training and evaluation."""
    return max(experiment.rollout.max_turns, experiment.eval.max_turns)
