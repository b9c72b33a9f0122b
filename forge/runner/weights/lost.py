# pyright: strict
"""Published weights of finished stages that a resumed run needs and that are missing or damaged.
Their stages run once more: a trainer that continues their last checkpoint only publishes.

Called by `work.py` before the first stage.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from forge.errors import MachineError
from forge.runner.weights.resume import sha256_of_weights
from forge.train.checkpoints import checkpoint_dir, find_damage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.records import PolicyVersion
    from forge.serve.weights import Weights
    from forge.store.layout import RunPaths
    from forge.store.resume import LastState


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWeights:
    """Weights that a stage has to publish again."""

    stage: int
    message: str


def find_lost_weights(
    state: LastState, stage_weights: Mapping[int, Weights], paths: RunPaths
) -> list[LostWeights]:
    """The lost weights that unfinished stages begin with. Removes what is left of them. Reads
    weights and checkpoints completely: call it in a thread.

    Raises:
        MachineError: there is no whole checkpoint to publish them from.
    """
    published = {PurePath(policy.path).name: policy for policy in reversed(state.policies)}
    found: dict[int, LostWeights] = {}
    needed = [w for i, w in stage_weights.items() if i not in state.finished_stages]
    if not needed and state.policies:
        needed = [
            stage_weights[state.policies[0].stage].then(Path(state.policies[0].path), version=0)
        ]
    while needed:
        weights = needed.pop()
        for path in filter(None, (weights.full, weights.adapter)):
            policy = published.get(path.name)
            if policy is None or policy.stage in found or policy.stage not in state.finished_stages:
                continue
            lost = _check(policy, paths)
            if lost is not None:
                found[policy.stage] = lost
                needed.append(stage_weights[policy.stage])
    return list(found.values())


def without_stages(state: LastState, lost: list[LostWeights]) -> LastState:
    """The state with these stages unfinished."""
    again = {each.stage for each in lost}
    finished = tuple(stage for stage in state.finished_stages if stage not in again)
    return replace(state, finished_stages=finished)


def _check(policy: PolicyVersion, paths: RunPaths) -> LostWeights | None:
    """None if the weights are whole."""
    path = paths.weights / PurePath(policy.path).name
    place = f"{path.parent.name}/{path.name}"
    is_there = path.is_dir()
    if is_there and sha256_of_weights(path) == policy.sha256:
        return None
    problem = "damaged" if is_there else "missing"
    checkpoint = checkpoint_dir(paths.checkpoints / f"stage-{policy.stage}", policy.step)
    source = f"{checkpoint.parent.parent.name}/{checkpoint.parent.name}/{checkpoint.name}"
    if damage := find_damage(checkpoint):
        raise MachineError(
            f"{place}: {problem}, and {source}, which it was published from, is damaged too "
            f"({damage}). Put a copy of either back, or begin a new run"
        )
    shutil.rmtree(path, ignore_errors=True)  # its name is needed
    return LostWeights(
        stage=policy.stage, message=f"{place}: {problem}; published again from {source}"
    )
