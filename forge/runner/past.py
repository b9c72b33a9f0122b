"""State that earlier attempts of a run left, the rows of it that are missing, and the return to one
of its checkpoints (--from).

Rows of run.db are held against what proves that more were recorded: the acknowledged counts, the
batch files and the checkpoints. A run.db without its WAL, with a damaged one, or copied back from
an earlier day has fewer commits than were acknowledged. The run continues from its checkpoints and
batches, and no id is given out again.

`forge run --fork RUN:STEP` makes a new run that continues a checkpoint of another one, its parent.
The new directory gets what the stage needs: checkpoint, weights that it began with, prepared data,
the producer's state. Files are hard links where possible, since none of them ever changes. Then the
new run is resumed like any other.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import anyio

from forge.config.load import dump_experiment, load_experiment
from forge.config.schema import Experiment, GrpoStage, ModelTable, Stage, TrainStage
from forge.data.template import text_of
from forge.errors import ConfigError, MachineError
from forge.records import Event, PolicyVersion, split_step
from forge.runner.weights.resume import check_there, load_stage_weights, on_model
from forge.serve.weights import Weights
from forge.store.acknowledged import read_acknowledged
from forge.store.layout import RunPaths, create_run, find_run, write_file
from forge.store.reader import RunReader, open_run
from forge.store.resume import LastState, events, last_state
from forge.store.write.writer import open_writer
from forge.train.batch import BadBatch, SampleHeader, read_headers
from forge.train.checkpoints import (
    checkpoint_dir,
    checkpoints,
    find_damage,
    link_or_copy,
    require_whole,
)

KIND = "rows_missing"
"""Kind of the event, whose `group_id` `store.resume` reads."""
FORKED = "forked"
_PRESENT = "SELECT sample_id FROM samples WHERE sample_id > ?"
_TRAINED = "SELECT stage, max(step) FROM sample_uses GROUP BY stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempts:
    state: LastState | None = None
    stage_weights: Mapping[int, Weights] | None = None
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
    """The past of a run whose interrupted stage continues after an earlier step. Raises
    ConfigError if no training stage is interrupted, and as `require_checkpoint`."""
    assert past.state is not None
    begun = [i for i in past.stage_weights or {} if i not in past.state.finished_stages]
    stage = max(begun, default=None)
    if stage is None or not isinstance(experiment.stage[stage], TrainStage):
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
    work_dir = paths.checkpoints / f"stage-{stage}"
    label = experiment.stage[stage].label(stage)
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
    missing: dict[str, int]
    """Numbers of turns, samples and commits that no earlier attempt reported."""
    steps: dict[int, range]
    """Stage index to trained steps that a checkpoint contains and no row mentions."""

    @property
    def is_whole(self) -> bool:
        """True if nothing is missing that was not reported by an earlier attempt."""
        return not (any(self.missing.values()) or self.steps)

    def describe(self) -> str:
        parts = [f"{number} {name}" for name, number in self.missing.items() if number]
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
                **self.missing,
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
    ids = ("group_id", "sample_id", "policy_version")
    highest = {name: max(getattr(each, name) for each in (state, *headers)) for name in ids}
    return HeldRows(
        state=replace(state, **highest),
        missing={
            "turns": max(0, known.turns - num_turns),
            "samples": len(offered),
            "commits": max(0, known.commits - num_commits),
        },
        steps=_missing_steps(reader, stages, reported),
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
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def fork_run(spec: str, *, store_dir: Path, overrides: Sequence[str] = ()) -> RunPaths:
    """Make the directory of a new run. Returns it, ready to be resumed. `spec` is `RUN:STEP` of the
    last training stage with such a checkpoint; `overrides` change the parent's experiment. Raises
    ConfigError for no such run or checkpoint, or other stages; MachineError for a damaged one."""
    name, step_text = split_step(spec)
    if not step_text:
        raise ConfigError(f"--fork {spec}: found no RUN:STEP; write e.g. --fork quickstart-1:10")
    parent, step = find_run(name, store_dir=store_dir), int(step_text)
    with open_run(parent) as reader:
        past = EarlierAttempts(state=last_state(reader), stage_weights=load_stage_weights(reader))
    before = load_experiment(parent.experiment)
    experiment = load_experiment(parent.experiment, overrides=overrides)
    stage = _stage_of(past, parent, before, step)
    _require_same_stages(experiment, before, stage, step)
    paths = create_run(experiment.name, store_dir=experiment.store.dir)
    template = text_of(experiment.model.chat_template)
    model = experiment.model.model_copy(update={"chat_template": template})
    write_file(paths.experiment, dump_experiment(experiment.model_copy(update={"model": model})))
    policies = _copy(parent, paths, past, stage=stage, step=step)
    anyio.run(partial(_record, paths, parent, experiment, past, policies, stage=stage, step=step))
    return paths


def _stage_of(past: EarlierAttempts, parent: RunPaths, experiment: Experiment, step: int) -> int:
    stages = past.stage_weights or {}
    begun = sorted((i for i in stages if isinstance(experiment.stage[i], TrainStage)), reverse=True)
    if not begun:
        raise ConfigError(f"{parent.name}: no training stage has begun, so there is no checkpoint")
    having = [i for i in begun if step in checkpoints(parent.checkpoints / f"stage-{i}")]
    stage = having[0] if having else begun[0]
    require_checkpoint(parent, experiment, stage=stage, step=step)
    return stage


def _require_same_stages(experiment: Experiment, before: Experiment, stage: int, step: int) -> None:
    if experiment.data != before.data:
        raise ConfigError("--set data: a fork keeps its parent's rows; a new run trains on others")
    kinds = [[each.kind for each in e.stage[: stage + 1]] for e in (experiment, before)]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            f"--set stage: found {', '.join(kinds[0])}; a fork keeps the parent's stages up to its "
            f"own: {', '.join(kinds[1])}"
        )
    own = experiment.stage[stage]
    if isinstance(own, TrainStage) and own.steps and own.steps < step:
        raise ConfigError(f"--set stage.{stage}.steps: found {own.steps}; at least {step}")


def _copy(
    parent: RunPaths, paths: RunPaths, past: EarlierAttempts, *, stage: int, step: int
) -> list[PolicyVersion]:
    """Link what the stage needs; returns the published weights among it, oldest first."""
    source, target = (each.checkpoints / f"stage-{stage}" for each in (parent, paths))
    _link_tree(checkpoint_dir(source, step), checkpoint_dir(target, step))
    require_whole(checkpoint_dir(target, step))
    with suppress(FileNotFoundError):  # a stage without a publish has none
        link_or_copy(source / "probe.json", target / "probe.json")
    with suppress(FileNotFoundError):  # then problems come in a new order
        batch = f"{stage}-{step:06d}.npz"
        link_or_copy(parent.batches / batch, paths.batches / batch)
    if (parent.root / "data").is_dir():
        _link_tree(parent.root / "data", paths.root / "data")
    start = (past.stage_weights or {})[stage]
    names = {"init", *(path.name for path in (start.full, start.adapter) if path is not None)}
    for name in names:
        if (parent.weights / name).is_dir():
            _link_tree(parent.weights / name, paths.weights / name)
    assert past.state is not None
    found = {PurePath(policy.path).name: policy for policy in past.state.policies}
    return sorted((found[name] for name in names & found.keys()), key=lambda each: each.version)


async def _record(
    paths: RunPaths, parent: RunPaths, experiment: Experiment, past: EarlierAttempts,
    policies: Sequence[PolicyVersion], *, stage: int, step: int,
) -> None:  # fmt: skip
    """Write the rows that a resume reads, and where the run comes from."""
    assert past.state is not None
    now, label = time.time(), experiment.stage[stage].label(stage)
    message = f"forked from {parent.name} after step {step} of {label}"
    origin = {
        "parent": parent.name,
        "path": str(parent.root),
        "stage": stage,
        "step": step,
        # Rows up to these are in the parent, not lost.
        "sample_id": past.state.sample_id,
        "steps": {str(stage): step},
    }
    found: list[tuple[str, str, dict[str, Any]]] = [(FORKED, message, origin)]
    for index in range(stage + 1):
        weights = (past.stage_weights or {}).get(index)
        name = experiment.stage[index].label(index)
        if weights is None:
            continue
        data = {"stage": index, "weights": weights.to_json(parent.record)}
        found.append(("stage_start", name, data))
        if index < stage:
            found.append(("stage_end", f"{name}: in {parent.name}", {"stage": index}))
    data = {"stage": stage, "step": step}
    found.append(("checkpoint", f"{label}: checkpoint after step {step}", data))
    async with open_writer(paths, experiment.store) as writer:
        await writer.put(
            *(Event(at=now, kind=kind, message=text, data=data) for kind, text, data in found),
            *(replace(each, path=parent.record(each.path), attempt=0) for each in policies),
        )


def _link_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=link_or_copy, dirs_exist_ok=True)
