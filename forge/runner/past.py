"""State that earlier attempts of a run left, and the return to one of its checkpoints (--from).

Called by `run.py` before a run is resumed, and by `fork.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forge.config.schema import EvalStage
from forge.errors import ConfigError, MachineError
from forge.runner.prepare.missing_rows import hold_rows
from forge.runner.weights.resume import check_there, load_stage_weights, on_model
from forge.store.identity import recorded_identity, settle_identity
from forge.store.reader import open_run
from forge.train.checkpoints import checkpoint_dir, checkpoints, find_damage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forge.config.schema import Experiment, ModelTable
    from forge.records import Event
    from forge.serve.weights import Weights
    from forge.store.identity import Settled
    from forge.store.layout import RunPaths
    from forge.store.resume import LastState


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempts:
    """State that earlier attempts left. Empty for a new run."""

    state: LastState | None = None
    stage_weights: Mapping[int, Weights] | None = None
    """Weights that each stage began with, by stage index."""
    identity: Settled | None = None
    """Id of the run, with what has happened to its directory since."""
    missing: Event | None = None
    """Rows of theirs that are gone; None if all are there."""
    back_to: tuple[int, int] | None = None
    """A stage, and the step after which it continues; None for its last checkpoint."""

    def news(self) -> Iterator[str]:
        """Lines about the run directory since the last attempt: moved, copied, rows lost."""
        if self.identity and self.identity.news:
            yield self.identity.news
        if self.missing:
            yield self.missing.message

    def records(self) -> Iterator[Event]:
        """The same as events, unless the store has them."""
        if self.identity and not self.identity.is_recorded:
            yield self.identity.event(at=time.time())
        if self.missing:
            yield self.missing

    def on_model(self, model: ModelTable, *, paths: RunPaths) -> EarlierAttempts:
        """The same on the experiment's model where it is now. Raises MachineError if a model that
        the run did not publish is not there; `find_lost_weights` looks for the others."""
        done = self.state.finished_stages if self.state else ()
        found = {
            index: on_model(weights, model)
            for index, weights in (self.stage_weights or {}).items()
            if index not in done
        }
        for index, weights in found.items():
            check_there(weights, whose=f"stage {index} of {paths.name}", but_in=paths.root)
        return replace(self, stage_weights={**(self.stage_weights or {}), **found})


def load_past(paths: RunPaths, experiment: Experiment) -> EarlierAttempts:
    """Read the state of a run whose lock the caller holds, and settle its identity."""
    with open_run(paths) as reader:
        held = hold_rows(reader, experiment.stage)
        return EarlierAttempts(
            state=held.state,
            missing=None if held.is_whole else held.to_event(paths.run_db),
            stage_weights=load_stage_weights(reader),
            identity=settle_identity(paths, recorded=recorded_identity(reader)),
        )


def back_to_step(
    past: EarlierAttempts, step: int, *, experiment: Experiment, paths: RunPaths
) -> EarlierAttempts:
    """The past of a run whose interrupted stage continues after an earlier step.

    Raises:
        ConfigError: no training stage is interrupted, or it has no checkpoint of this step.
        MachineError: the checkpoint is damaged.
    """
    assert past.state is not None
    begun = [i for i in past.stage_weights or {} if i not in past.state.finished_stages]
    stage = max(begun, default=None)
    if stage is None or isinstance(experiment.stage[stage], EvalStage):
        raise ConfigError(
            f"{paths.name}: no training stage was interrupted, so --from has nothing to continue; "
            f'"forge run --fork {paths.name}:{step}" begins a new run after a step'
        )
    if step:
        require_checkpoint(paths, experiment, stage=stage, step=step)
    policies = tuple(
        each for each in past.state.policies if each.stage != stage or each.step <= step
    )
    return replace(past, state=replace(past.state, policies=policies), back_to=(stage, step))


def require_checkpoint(paths: RunPaths, experiment: Experiment, *, stage: int, step: int) -> None:
    """Raise ConfigError if there is no checkpoint of this step, MachineError if it is damaged."""
    work_dir = paths.checkpoints / f"stage-{stage}"
    label = f"{experiment.stage[stage].kind}-{stage}"
    steps = ", ".join(map(str, checkpoints(work_dir))) or "none"
    if step not in checkpoints(work_dir):
        raise ConfigError(
            f"{paths.name}: found no checkpoint after step {step} of {label}; allowed: {steps}"
        )
    if damage := find_damage(checkpoint_dir(work_dir, step)):
        path = checkpoint_dir(work_dir, step)
        raise MachineError(f"{path}: {damage}; allowed are other checkpoints of {label}: {steps}")
