"""Checks of keys that decide how far generation may run ahead of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.checks.mistake import mistake
from forge.config.schema import Experiment, GrpoStage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.checks.mistake import Mistake


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
