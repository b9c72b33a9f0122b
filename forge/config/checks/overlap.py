"""Checks of keys that say how far training and generation may be apart. Part of `checks.check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.checks.mistake import Mistake
from forge.config.schema import Experiment, GrpoStage

if TYPE_CHECKING:
    from collections.abc import Iterator


def overlap(experiment: Experiment) -> Iterator[Mistake]:
    """Keys that max_staleness leaves no room for, or no use."""
    rollout = experiment.rollout
    steps = rollout.max_staleness + 1
    room = f"at most rollout.max_staleness + 1 = {steps}"
    if rollout.replay > steps:
        text = f"found {rollout.replay}; {room}, after which a group is too old to be trained"
        yield Mistake(path=("rollout", "replay"), text=text)
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, GrpoStage) and stage.publish_every > steps:
            text = f"found {stage.publish_every}; {room}, or the trainer waits for its own publish"
            yield Mistake(path=("stage", index, "publish_every"), text=text)
    yield from _most_at_once(experiment)


def _most_at_once(experiment: Experiment) -> Iterator[Mistake]:
    rollout, serve = experiment.rollout, experiment.serve
    if serve.max_concurrency is None:
        return
    path, found = ("serve", "max_concurrency"), f"found {serve.max_concurrency}"
    trains = any(isinstance(stage, GrpoStage) for stage in experiment.stage)
    if not trains or rollout.groups_in_flight != "auto" or not rollout.max_staleness:
        text = (
            f'{found}; it bounds what rollout.groups_in_flight = "auto" finds for a grpo stage '
            "with rollout.max_staleness of at least 1, and nothing else"
        )
        yield Mistake(path=path, text=text)
    elif serve.max_concurrency * serve.replicas < rollout.group_size:
        least = -(-rollout.group_size // serve.replicas)
        text = f"{found}; at least {least}, for one group of rollout.group_size"
        yield Mistake(path=path, text=f"{text} = {rollout.group_size}")
