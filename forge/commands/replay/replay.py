"""`forge train --replay`: from RUN:STEP to the comparison of the step's metrics.

The trainer gets the recorded batch, the checkpoint that the step began from and the settings of the
run's stage, with the overrides of `--set`. It publishes nothing. Its files are in a temporary
directory, or with `--out` in that one.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from forge.commands.replay.recorded import find_stage, read_start, read_step
from forge.commands.replay.report import ReplayReport
from forge.commands.replay.trainer import train_batch
from forge.config.load import load_experiment
from forge.config.schema import GrpoStage
from forge.errors import ConfigError
from forge.process.sockets import open_socket_dir
from forge.runner.plan.claiming import open_claimed
from forge.runner.plan.machine import this_machine
from forge.runner.plan.placement import place
from forge.runner.prepare.locate_model import locate_model
from forge.runner.stages.trainer import resolve_auto
from forge.store.layout import find_run
from forge.store.reader import open_run
from forge.train.batch import write_batch
from forge.train.checkpoints import checkpoint_dir
from forge.train.durable import STAGING
from forge.train.handle import TrainerJob

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forge.commands.replay.recorded import RecordedStep
    from forge.config.schema import Experiment
    from forge.runner.plan.machine import Machine
    from forge.runner.plan.placement import Placement
    from forge.serve.weights import Weights
    from forge.store.layout import RunPaths

IN_CHECKPOINT = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "optimizer")
"""Keys of a stage whose values a checkpoint of the optimizer and its schedule contains."""
ROLLOUT_KEYS = ("rollout.temperature", "rollout.max_completion_tokens")
"""Keys of `[rollout]` on which the loss depends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Everything that a replay needs of a run."""

    experiment: Experiment
    """With the overrides; its model is located."""
    recorded: RecordedStep
    start: Weights
    """The weights that the stage began with."""


def replay(
    spec: str,
    *,
    overrides: Sequence[str],
    stage: int | None,
    out: Path | None,
    store_dir: Path,
    say: Callable[[str], None],
) -> ReplayReport:
    """Train a recorded step again.

    Args:
        spec: `RUN:STEP`.
        overrides: arguments of `--set`: keys of the stage, and those that enter the loss.
        stage: number of the stage; None for the last one that trained the step.
        out: directory that gets the checkpoint after the step; None writes none.

    Raises:
        ConfigError: no such step, what it needs was not kept, or an override without an effect.
        MachineError: a damaged checkpoint, or too little GPU memory.
        ChildDied, Stalled: the trainer failed.
    """
    name, step = _parse(spec)
    _check_out(out, step)
    paths = find_run(name, store_dir=store_dir)
    plan = _read(paths, step, stage, overrides)
    with open_claimed(
        partial(_place, plan.experiment),
        look=partial(this_machine, plan.experiment.store.dir),
        run=f"forge train --replay {spec}",
        wait_s=plan.experiment.devices.wait_s,
        say=say,
    ) as (placement, _):
        metrics = _train(plan, placement, out)
    return ReplayReport(
        run=paths.name,
        stage=plan.recorded.stage,
        step=step,
        device=", ".join(gpu.name for gpu in placement.train) or "cpu",
        num_samples=len(plan.recorded.samples),
        is_exact=plan.recorded.is_exact,
        overrides=tuple(overrides),
        recorded=plan.recorded.metrics,
        replayed=metrics,
        checkpoint=None if out is None else str(checkpoint_dir(out, step)),
    )


def _read(paths: RunPaths, step: int, stage: int | None, overrides: Sequence[str]) -> _Plan:
    """Read the run. The step is found by the recorded experiment, without the overrides."""
    before = load_experiment(paths.experiment, is_here=False)
    with open_run(paths) as reader:
        stage = find_stage(paths, reader, before, step=step, asked=stage)
        _check_overrides(overrides, stage=stage, step=step)
        recorded = read_step(paths, reader, before, stage=stage, step=step)
        experiment = load_experiment(paths.experiment, overrides=overrides, is_here=False)
        model = locate_model(experiment.model)
        start = read_start(reader, model, stage=stage, name=paths.name)
    experiment = experiment.model_copy(update={"model": model})
    return _Plan(experiment=experiment, recorded=recorded, start=start)


def _train(plan: _Plan, placement: Placement, out: Path | None) -> Mapping[str, float]:
    """The metrics of the step, trained in a child. Its other files are temporary."""
    with tempfile.TemporaryDirectory() as name, open_socket_dir() as socket_dir:
        folder = Path(name)
        batch = folder / "batch.npz"
        write_batch(batch, plan.recorded.samples)
        job = _job(plan, placement, folder, work_dir=out or folder / "work", sockets=socket_dir)
        step = plan.recorded.step
        run = partial(train_batch, job, batch=batch, step=step, is_saved=out is not None)
        metrics = anyio.run(run)
    if out is not None:
        shutil.rmtree(out / STAGING, ignore_errors=True)
    return metrics


def _parse(spec: str) -> tuple[str, int]:
    name, _, step = spec.rpartition(":")
    if not name or not step.isdecimal() or int(step) < 1:
        raise ConfigError(
            f"--replay {spec}: found no RUN:STEP; write e.g. --replay quickstart-1:10"
        )
    return name, int(step)


def _check_out(out: Path | None, step: int) -> None:
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: found a file; a directory, which may be absent")
    if checkpoint_dir(out, step).exists():
        raise ConfigError(f"--out {out}: found checkpoint-{step} in it; another directory")


def _check_overrides(overrides: Sequence[str], *, stage: int, step: int) -> None:
    """Raises ConfigError for a key that does not enter the step."""
    own = f"stage.{stage}."
    for item in overrides:
        key = item.partition("=")[0].strip()
        if key.removeprefix(own) in IN_CHECKPOINT and key.startswith(own) and step > 1:
            raise ConfigError(
                f"--set {key}: step {step} continues a checkpoint, which has its own value; "
                "allowed for step 1"
            )
        if not (key.startswith((own, "devices.")) or key in ROLLOUT_KEYS):
            raise ConfigError(
                f"--set {key}: not a key of this step; {own}KEY, {', '.join(ROLLOUT_KEYS)} or "
                "devices.KEY"
            )


def _place(experiment: Experiment, machine: Machine) -> Placement:
    """The trainer alone on the cards; on the CPU if the machine has none."""
    devices = experiment.devices.model_copy(update={"serve": 0, "judge": 0})
    if not machine.gpus:
        devices = devices.model_copy(update={"gpus": None, "train": 0})
    return place(experiment.model_copy(update={"devices": devices}), machine)


def _job(
    plan: _Plan, placement: Placement, folder: Path, *, work_dir: Path, sockets: Path
) -> TrainerJob:
    experiment, start = plan.experiment, plan.start
    stage = experiment.stage[plan.recorded.stage]
    assert isinstance(stage, GrpoStage), "find_stage chose a grpo stage"
    return TrainerJob(
        stage=resolve_auto(stage, placement, model=experiment.model, model_dir=start.full),
        model=experiment.model,
        model_dir=start.full,
        adapter=start.adapter,
        rollout=experiment.rollout,
        seed=experiment.seed,
        work_dir=work_dir,
        checkpoint=plan.recorded.checkpoint,
        weights_dir=folder / "weights",
        control_socket=sockets / "control.sock",
        log_dir=folder / "logs",
        gpus=placement.train_uuids,
        publishes=False,
    )
