"""State that earlier attempts of a run left, the rows of it that are missing, and the return to one
of its checkpoints (--from).

Called by `run.py` before a run is resumed, by `fork.py` and by `forge doctor RUN`. Rows of run.db
are held against what proves that more were recorded: the acknowledged counts, the batch files and
the checkpoints. A run.db without its WAL, with a damaged one, or copied back from an earlier day
has fewer commits than were acknowledged. The run continues from its checkpoints and batches, and no
id is given out again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forge.config.schema import EvalStage, GrpoStage
from forge.errors import ConfigError, MachineError
from forge.records import Event
from forge.runner.weights.resume import check_there, load_stage_weights, on_model
from forge.store.acknowledged import read_acknowledged
from forge.store.reader import open_run
from forge.store.resume import LastState, events, last_state
from forge.train.batch import BadBatch, SampleHeader, read_headers
from forge.train.checkpoints import checkpoint_dir, checkpoints, find_damage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from forge.config.schema import Experiment, ModelTable, Stage
    from forge.serve.weights import Weights
    from forge.store.layout import RunPaths
    from forge.store.reader import RunReader

KIND = "rows_missing"
"""Kind of the event, whose `group_id` `store.resume` reads."""
FORKED = "forked"
"""Kind of the event of a run that continues another one, where the rows before it are."""
_PRESENT = "SELECT sample_id FROM samples WHERE sample_id > ?"
_TRAINED = "SELECT stage, max(step) FROM sample_uses GROUP BY stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempts:
    """State that earlier attempts left. Empty for a new run."""

    state: LastState | None = None
    stage_weights: Mapping[int, Weights] | None = None
    """Weights that each stage began with, by stage index."""
    missing: Event | None = None
    """Rows of theirs that are gone; None if all are there."""
    back_to: tuple[int, int] | None = None
    """A stage, and the step after which it continues; None for its last checkpoint."""

    def on_model(self, model: ModelTable, *, paths: RunPaths) -> EarlierAttempts:
        """The same on the experiment's model where it is now. Raises MachineError if a model that
        the run did not publish is not there; `require_weights` looks at the others."""
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
    """Read the state of a run whose lock the caller holds."""
    with open_run(paths) as reader:
        held = hold_rows(reader, experiment.stage)
        return EarlierAttempts(
            state=held.state,
            missing=None if held.is_whole else held.to_event(paths.run_db),
            stage_weights=load_stage_weights(reader),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRows:
    """The state of a run, and the rows that it lacks."""

    state: LastState
    """Its ids are the highest of run.db, of the acknowledged rows and of the batch files."""
    turns: int
    """Number of turns that are missing."""
    samples: int
    """Number of samples that are missing."""
    steps: dict[int, range]
    """Stage index to trained steps that a checkpoint contains and no row mentions."""
    commits: int = 0
    """Number of commits that are missing."""

    @property
    def is_whole(self) -> bool:
        """True if nothing is missing that was not reported by an earlier attempt."""
        return not (self.turns or self.samples or self.steps or self.commits)

    def describe(self) -> str:
        """The missing rows, as the subject of a sentence."""
        counts = {"turns": self.turns, "samples": self.samples, "commits": self.commits}
        parts = [f"{number} {name}" for name, number in counts.items() if number]
        parts += [f"{name_steps(steps)} of grpo-{stage}" for stage, steps in self.steps.items()]
        return ", ".join(parts)

    def to_event(self, run_db: Path) -> Event:
        """The event that records the loss; later attempts do not report it again."""
        state = self.state
        return Event(
            at=time.time(),
            kind=KIND,
            message=f"{run_db}: rows that were recorded are missing: {self.describe()}; its "
            "run.db-wal was cut or damaged, or it is an older copy. Their ids are not used again",
            data={
                "turns": self.turns,
                "samples": self.samples,
                "commits": self.commits,
                "steps": {stage: steps[-1] for stage, steps in self.steps.items()},
                "group_id": state.group_id,
                "sample_id": state.sample_id,
                "policy_version": state.policy_version,
            },
        )


def hold_rows(reader: RunReader, stages: Sequence[Stage]) -> HeldRows:
    """Compares run.db with the files of its run. Reads the headers of every batch file."""
    paths, state = reader.paths, last_state(reader)
    known = read_acknowledged(paths.acknowledged)
    reported = [event.data for kind in (KIND, FORKED) for event in events(reader, kind=kind)]
    headers = _read_batches(paths.batches)
    last_reported = max((data["sample_id"] for data in reported), default=-1)
    offered = {each.sample_id for each in headers if each.sample_id > last_reported}
    if offered:
        offered -= {row[0] for row in reader.query(_PRESENT, (last_reported,)).rows}
    num_turns: int = reader.value("SELECT coalesce(max(turn_row), 0) FROM turns")
    num_commits: int = reader.value("SELECT num_commits FROM runs") or 0
    return HeldRows(
        state=replace(
            state,
            group_id=max([state.group_id, *(each.group_id for each in headers)]),
            sample_id=max([state.sample_id, *(each.sample_id for each in headers)]),
            policy_version=max([state.policy_version, *(each.policy_version for each in headers)]),
        ),
        turns=max(0, known.turns - num_turns),
        samples=len(offered),
        steps=_missing_steps(reader, stages, reported),
        commits=max(0, known.commits - num_commits),
    )


def _missing_steps(
    reader: RunReader, stages: Sequence[Stage], reported: list[Any]
) -> dict[int, range]:
    trained: dict[int, int] = dict(reader.query(_TRAINED).rows)
    found: dict[int, range] = {}
    for index, stage in enumerate(stages):
        if not isinstance(stage, GrpoStage):
            continue
        saved = max(checkpoints(reader.paths.checkpoints / f"stage-{index}"), default=0)
        known = [int(data["steps"].get(str(index), 0)) for data in reported]
        if missing := range(max(trained.get(index, 0), *known, 0) + 1, saved + 1):
            found[index] = missing
    return found


def _read_batches(folder: Path) -> list[SampleHeader]:
    """Headers of all batch files that can be read; a stage reports the others when it begins."""
    found: list[SampleHeader] = []
    for path in sorted(folder.glob("*.npz")):
        try:
            found += read_headers(path)
        except BadBatch:
            continue
    return found


def name_steps(steps: range) -> str:
    """`step 4` or `steps 4 to 6`."""
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
