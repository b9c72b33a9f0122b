"""Checks of `[[stage]]`: stages that cannot work where they are, settings of training, and how far
generation may run ahead of training.
"""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.checks.mistake import Mistake, mistake
from forge.config.schema import EvalStage, Experiment, GrpoStage, SftStage, TrainStage


def check_order(experiment: Experiment) -> Iterator[Mistake]:
    """Stages that need answers, a model that can write kernels, or more problems."""
    is_random = experiment.model.init is not None and experiment.model.adapter is None
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, SftStage):
            is_random = False
            if not experiment.problems.has_generated and experiment.data.source != "file":
                yield mistake(
                    'found "sft", which needs answers, and only generated problems have some; '
                    'set data.source = "file" for rows of a file, or use grpo or eval with a model '
                    "that can already write kernels",
                    *("stage", index, "kind"),
                )
        if isinstance(stage, GrpoStage) and is_random:
            yield mistake(
                "found grpo on random weights, where every group is flat and nothing is learned; "
                'put a [[stage]] with kind = "sft" before it, or start from [model] path',
                *("stage", index, "kind"),
            )
        heldout = experiment.problems.num_heldout
        wanted = stage.num_problems if isinstance(stage, EvalStage) else None
        if not experiment.problems.has_others and wanted and wanted > heldout:
            text = f"found {wanted}; at most problems.num_heldout = {heldout}"
            yield mistake(text, "stage", index, "num_problems")


def check_training(experiment: Experiment) -> Iterator[Mistake]:
    """Steps, learning rates and parallelism of each training stage."""
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, EvalStage):
            continue
        yield from _check_steps(stage, index)
        yield from _check_learning_rate(stage, index)
        if isinstance(stage, SftStage) and stage.loss_turns == "all":
            yield from _check_loss_turns(experiment, index)
        if isinstance(stage, GrpoStage) and stage.share_prefixes is True:
            yield from _check_attention(stage, index)
        if stage.context_parallel > 1:
            yield mistake(
                f"found {stage.context_parallel}; 1, since no trainer here splits a sequence over "
                "GPUs (TRL's GRPO trainers cannot); fsdp2 and smaller micro-batches save memory",
                *("stage", index, "context_parallel"),
            )
        if experiment.model.quantize and stage.parallel == "fsdp2":
            text = 'found "fsdp2" with [model.quantize], whose 4-bit weights cannot be sharded;'
            yield mistake(f'{text} "ddp" or "auto"', "stage", index, "parallel")


def _check_loss_turns(experiment: Experiment, index: int) -> Iterator[Mistake]:
    data = experiment.data
    if data.source == "generated" and data.repair_share:
        yield mistake(
            'found "all" with generated repairs, whose earlier answers are wrong on purpose; '
            '"last", or data.repair_share = 0',
            *("stage", index, "loss_turns"),
        )


def _check_attention(stage: GrpoStage, index: int) -> Iterator[Mistake]:
    if stage.attention != "auto":
        text = (
            f'found "{stage.attention}" with share_prefixes = true, which has an attention of its'
        )
        yield mistake(f'{text} own; "auto"', "stage", index, "attention")


def _check_steps(stage: TrainStage, index: int) -> Iterator[Mistake]:
    epochs = stage.epochs if isinstance(stage, SftStage) else None
    if stage.steps and epochs:
        yield mistake("found both steps and epochs; set exactly one of them", "stage", index)
    if not stage.steps and not epochs:
        yield mistake("found neither steps nor epochs; set exactly one of them", "stage", index)
    if stage.steps and stage.warmup_steps > stage.steps:
        text = f"found {stage.warmup_steps}; at most steps = {stage.steps}"
        yield mistake(text, "stage", index, "warmup_steps")


def _check_learning_rate(stage: TrainStage, index: int) -> Iterator[Mistake]:
    path = ("stage", index, "min_learning_rate")
    if stage.min_learning_rate > stage.learning_rate:
        text = f"found {stage.min_learning_rate}; at most learning_rate = {stage.learning_rate}"
        yield mistake(text, *path)
    if stage.min_learning_rate and stage.schedule == "constant":
        text = f'found {stage.min_learning_rate} with schedule = "constant", which does not decay;'
        yield mistake(f'{text} set schedule to "linear" or "cosine"', *path)


def check_overlap(experiment: Experiment) -> Iterator[Mistake]:
    """Values that max_staleness does not allow, or that have no effect."""
    rollout = experiment.rollout
    steps = rollout.max_staleness + 1
    most = f"at most rollout.max_staleness + 1 = {steps}"
    if rollout.replay > steps:
        text = f"found {rollout.replay}; {most}, since an older group may not be trained on"
        yield mistake(text, "rollout", "replay")
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, GrpoStage) and stage.publish_every > steps:
            text = f"found {stage.publish_every}; {most}, or the trainer waits for its own publish"
            yield mistake(text, "stage", index, "publish_every")
    yield from _check_max_concurrency(experiment)


def _check_max_concurrency(experiment: Experiment) -> Iterator[Mistake]:
    rollout, serve = experiment.rollout, experiment.serve
    if serve.max_concurrency is None:
        return
    path, found = ("serve", "max_concurrency"), f"found {serve.max_concurrency}"
    trains = any(isinstance(stage, GrpoStage) for stage in experiment.stage)
    if not trains or rollout.groups_in_flight != "auto" or not rollout.max_staleness:
        yield mistake(
            f'{found}; it only limits rollout.groups_in_flight = "auto" in a grpo stage with '
            "rollout.max_staleness of 1 or more",
            *path,
        )
    elif serve.max_concurrency * serve.replicas < rollout.group_size:
        least = -(-rollout.group_size // serve.replicas)
        text = f"{found}; at least {least}, for one group of rollout.group_size"
        yield mistake(f"{text} = {rollout.group_size}", *path)
