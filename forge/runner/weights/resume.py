"""Which weights of a run answer when it is asked later. Called by `chat` and `serving`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from forge.errors import ConfigError
from forge.serve.weights import Weights
from forge.store.reader import open_run
from forge.store.resume import events, last_state

if TYPE_CHECKING:
    from forge.store.layout import RunPaths


def find_weights(paths: RunPaths, step: str) -> Weights:
    """What was published after a step; for an empty `step` the newest that is still there, or what
    the run began with where it has published nothing yet.

    Raises ConfigError naming the steps that there are.
    """
    with open_run(paths) as reader:
        policies = last_state(reader).policies
        begun = events(reader, kind="stage_start")
    if not begun:
        raise ConfigError(f"{paths.name}: it has no model yet; its first stage has not begun")
    start = Weights.from_json(begun[0].data["weights"])
    kept = [policy for policy in policies if Path(policy.path).is_dir()]
    for policy in kept:
        if not step or str(policy.step) == step:
            return start.then(Path(policy.path), version=policy.version)
    if not policies and not step:
        return start
    steps = ", ".join(str(policy.step) for policy in reversed(kept)) or "none"
    raise ConfigError(f"{paths.name}@{step}: no weights of that step were kept; there are: {steps}")
