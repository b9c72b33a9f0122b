"""Checks of keys that say how far training and generation may be apart. Part of `checks.check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.mistakes import Mistake
from forge.config.schema import Experiment, GrpoStage

if TYPE_CHECKING:
    from collections.abc import Iterator


def overlap(experiment: Experiment) -> Iterator[Mistake]:
    """Keys that max_staleness leaves no room for."""
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
