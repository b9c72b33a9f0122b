"""`forge run --fork RUN:STEP`: a new run that continues a checkpoint of another one, its parent.

The new directory gets what the stage needs: checkpoint, weights that it began with, prepared data,
the producer's state. Files are hard links where possible, since none of them ever changes. The
parent stays as it is. Then the new run is resumed like any other.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import anyio

from forge.config.load import dump_experiment, load_experiment
from forge.config.schema import EvalStage
from forge.data.template import text_of
from forge.errors import ConfigError
from forge.records import Event, split_step
from forge.runner.past import FORKED, EarlierAttempts, require_checkpoint
from forge.runner.weights.resume import load_stage_weights
from forge.store.layout import create_run, find_run, write_file
from forge.store.reader import open_run
from forge.store.resume import last_state
from forge.store.write.writer import open_writer
from forge.train.checkpoints import checkpoint_dir, checkpoints, link_or_copy, require_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.config.schema import Experiment
    from forge.records import PolicyVersion
    from forge.store.layout import RunPaths


def fork_run(spec: str, *, store_dir: Path, overrides: Sequence[str] = ()) -> RunPaths:
    """Make the directory of a new run. Returns it, ready to be resumed.

    Args:
        spec: `RUN:STEP`; STEP is one of the last training stage with such a checkpoint.
        store_dir: parent of the parent run's directory.
        overrides: arguments of `--set` that change the parent's experiment.

    Raises:
        ConfigError: no such run or checkpoint, or other stages than the parent's.
        MachineError: the checkpoint is damaged.
    """
    name, step_text = split_step(spec)
    if not step_text:
        raise ConfigError(f"--fork {spec}: found no RUN:STEP; write e.g. --fork quickstart-1:10")
    parent, step = find_run(name, store_dir=store_dir), int(step_text)
    with open_run(parent) as reader:
        past = EarlierAttempts(state=last_state(reader), stage_weights=load_stage_weights(reader))
    experiment = load_experiment(parent.experiment, overrides=overrides)
    stage = _stage_of(past, parent, load_experiment(parent.experiment), step)
    _require_same_stages(experiment, load_experiment(parent.experiment), stage, step)
    paths = create_run(experiment.name, store_dir=experiment.store.dir)
    template = text_of(experiment.model.chat_template)
    model = experiment.model.model_copy(update={"chat_template": template})
    write_file(paths.experiment, dump_experiment(experiment.model_copy(update={"model": model})))
    policies = _copy(parent, paths, past, stage=stage, step=step)
    anyio.run(partial(_record, paths, parent, experiment, past, policies, stage=stage, step=step))
    return paths


def _stage_of(past: EarlierAttempts, parent: RunPaths, experiment: Experiment, step: int) -> int:
    """The last training stage with a whole checkpoint of this step."""
    begun = sorted(
        (i for i in past.stage_weights or {} if not isinstance(experiment.stage[i], EvalStage)),
        reverse=True,
    )
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
    if not isinstance(own, EvalStage) and own.steps and own.steps < step:
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
    paths: RunPaths,
    parent: RunPaths,
    experiment: Experiment,
    past: EarlierAttempts,
    policies: Sequence[PolicyVersion],
    *,
    stage: int,
    step: int,
) -> None:
    """Write the rows that a resume reads, and where the run comes from."""
    assert past.state is not None
    now, label = time.time(), f"{experiment.stage[stage].kind}-{stage}"
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
    records: list[Event | PolicyVersion] = [
        Event(at=now, kind=FORKED, message=message, data=origin)
    ]
    for index in range(stage + 1):
        weights = (past.stage_weights or {}).get(index)
        name = f"{experiment.stage[index].kind}-{index}"
        if weights is None:
            continue
        data = {"stage": index, "weights": weights.to_json(parent.record)}
        records.append(Event(at=now, kind="stage_start", message=name, data=data))
        if index < stage:
            done = f"{name}: in {parent.name}"
            records.append(Event(at=now, kind="stage_end", message=done, data={"stage": index}))
    data = {"stage": stage, "step": step}
    records.append(
        Event(
            at=now, kind="checkpoint", message=f"{label}: checkpoint after step {step}", data=data
        )
    )
    records += [replace(each, path=parent.record(each.path), attempt=0) for each in policies]
    async with open_writer(paths, experiment.store) as writer:
        await writer.put(*records)


def _link_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=link_or_copy, dirs_exist_ok=True)
