"""A run as the model of another: `model.path = "runs/x-1"`, or `"runs/x-1:40"` for the weights of a
step. An adapter is merged into its base by `merging`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forge.config.load import load_experiment
from forge.config.schema import Experiment
from forge.store.layout import RunPaths


def with_run(
    experiment: Experiment, *, merges: bool = True, say: Callable[[str], None] | None = None
) -> Experiment:
    """The experiment with a model directory in place of a run that `model.path` names. `merges`:
    False to take the base of an adapter, which has the same shape, for a plan; `say` gets a message
    if an adapter is merged, which takes minutes. Raises ConfigError, MachineError."""
    model = experiment.model
    name, step = model.run_and_step
    paths = RunPaths(Path(name).expanduser().resolve())
    if not name or not paths.run_db.is_file():
        return experiment
    # Only here: `forge plan` of any other model loads neither numpy nor the store.
    from forge.runner.merging import merge
    from forge.runner.weights.resume import find_weights
    from forge.store.reader import open_run

    open_run(paths).close()  # first: of another version, its keys may be unknown too
    weights, its = find_weights(paths, step), load_experiment(paths.experiment, is_here=False).model
    folder = weights.full
    if weights.adapter is not None and merges:
        folder = merge(paths.name, weights, its, say=say)
    update = {"path": str(folder), "chat_template": model.chat_template or its.chat_template}
    return experiment.model_copy(update={"model": model.model_copy(update=update)})
