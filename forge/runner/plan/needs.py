"""The parts of forge that an experiment needs, by its stages alone.

Called by `plan`, `placement` and `run`, so that exactly the planned processes are started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.schema import EvalStage, GrpoStage, SftStage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.config.schema import Experiment
    from forge.process.devices import Gpu


def needs_serving(experiment: Experiment) -> bool:
    """True if any stage generates."""
    return any(not isinstance(stage, SftStage) for stage in experiment.stage)


def needs_training(experiment: Experiment) -> bool:
    """True if any stage trains."""
    return any(not isinstance(stage, EvalStage) for stage in experiment.stage)


def needs_pairs(experiment: Experiment) -> bool:
    """True if a stage trains on pairs, or a tokenizer is trained on their texts."""
    is_sft = any(isinstance(stage, SftStage) for stage in experiment.stage)
    return is_sft or experiment.model.init is not None


def makes_pairs(experiment: Experiment) -> bool:
    """True if the generator makes the pairs, whose broken answers are judged."""
    return needs_pairs(experiment) and experiment.data.has_generated


def needs_judges(experiment: Experiment) -> bool:
    """True if anything is judged: completions of a stage, or broken answers of generated pairs."""
    return needs_serving(experiment) or makes_pairs(experiment)


def num_ranks(experiment: Experiment, cards: Sequence[Gpu]) -> int:
    """Ranks of the trainer, with those on nodes. `cards`: those of the ranks on this machine."""
    return max(1, len(cards)) * (1 + experiment.cluster.train_nodes)


def turns_trained(experiment: Experiment) -> int:
    """Maximum turns of a rollout that is trained on; 1 without any."""
    is_trained = any(isinstance(stage, GrpoStage) for stage in experiment.stage)
    return experiment.rollout.max_turns if is_trained else 1


def turns_played(experiment: Experiment) -> int:
    """Maximum turns of a rollout, in training and evaluation."""
    return max(experiment.rollout.max_turns, experiment.eval.max_turns)
