"""The supervisor's ownership of a trainer child: start, watch, restart from checkpoints, stop.

own_trainer ── open_trainer ──▶ child ── take, trained, publish, checkpoint ──▶ control.sock
    ├── watch  silent past step_timeout_s: stacks dumped, killed, restarted as if it had died
    └── stop   SIGTERM; it finishes its step, saves, exits 0
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio

from forge.cluster.roles import Ranks, is_cause, open_ranks
from forge.config.schema import GrpoStage, ModelTable, ServeTable, SftStage
from forge.errors import ConfigError, ForgeError, MachineError
from forge.process.child import Child, describe_exit
from forge.runner.plan.placement import Placement, is_packed
from forge.runner.stages.desk import TrainerDesk
from forge.runner.stages.run_context import RunContext
from forge.serve.engines import ENGINES
from forge.serve.weights import Weights
from forge.train.checkpoints import ResumePoint
from forge.train.handle import TrainerJob, open_trainer
from forge.views.text import gigabytes

Stage = TypeVar("Stage", bound=SftStage | GrpoStage)

WATCH_EVERY_S = 1.0
STOP_GRACE_S = 120.0
"""Time for a trainer to finish its step and write a checkpoint after a stop request."""
STACKS_S = 1.0
"""Time from the signal that dumps a child's stacks until they are in its log."""
SAVED = (describe_exit(0), describe_exit(-signal.SIGTERM))
"""Exit reasons of a stopped trainer that has lost nothing: it ended by itself, or the signal ended
it while it was still starting and had no handler."""
CAUSE_S = 20.0
"""Maximum time from the end of some ranks until it is known which ranks ended first."""
SCALES = (1.0, 0.5)
"""Micro-batch sizes to try, relative to the configured one: the second after GPU memory ran out."""


async def own_trainer(
    run: RunContext, stage: SftStage | GrpoStage, desk: TrainerDesk, *, point: ResumePoint,
    start: Weights, rows_path: Path | None = None,
) -> None:  # fmt: skip
    """Run the trainer from `point` until the last step is published. A dead or silent trainer is
    restarted from its last whole checkpoint. After GPU memory ran out it continues once with
    micro-batches of half the size, which does not count as a restart.

    Raises:
        Stopped: a stop was requested; the trainer has saved.
        ConfigError: it cannot train this model as asked.
        ChildDied, Stalled: it ended or was silent once too often, or instead of saving.
        MachineError: half the size did not fit either; or a file that it needs is damaged.
    """
    job = make_job(run, stage, desk, start=start, rows_path=rows_path)
    restarts, scales = 0, iter(SCALES)
    scale = next(scales)
    while True:
        desk.trainer_ended()
        desk.trainer_starts()
        # A restarted trainer first publishes its checkpoint, which must not change the weights
        # under a running evaluation.
        await desk.wait_until(lambda: not (desk.is_held or desk.is_publishing))
        scaled = replace(job, micro_batch_scale=scale, checkpoint=point.path)
        doing = partial(_doing, stage, desk)
        trained_before = desk.trained_step
        fault = await _train(run, stage, scaled, desk, doing)
        if fault is None:
            return
        if desk.refused:
            where = "" if desk.refused.startswith("model.") else f"stage.{desk.stage}."
            raise ConfigError(f"{where}{desk.refused}") from fault.error
        if desk.failure is not None:
            scale = next(scales, 0.0)
            words = memory_error(
                desk.failure, doing=doing(), is_halved=scaled.micro_batch_scale < 1
            )
            if run.stop.is_set:
                raise MachineError(f"{words}, while stopping. {run.stop.resume}") from fault.error
            if not scale:
                raise MachineError(f"{words}. {memory_advice(run, job)}") from fault.error
            message = f"{words}; restarted with half of that from its last checkpoint"
        else:
            # A node that is lost now and then ends no run that makes progress.
            is_counted = not (fault.is_elsewhere and desk.trained_step > trained_before)
            if run.stop.is_set or (is_counted and restarts == stage.restarts):
                raise fault.error
            restarts += is_counted
            message = f"{fault.words} in {doing()}; restarted from its last checkpoint"
        desk.num_restarts += 1
        await run.record("child_restart", message, says=True)
        point = await desk.checkpoints.choose()
        await anyio.to_thread.run_sync(partial(desk.shelf.check, after=point.step))


def _doing(stage: SftStage | GrpoStage, desk: TrainerDesk) -> str:
    return f"stage {stage.label(desk.stage)}, step {desk.trained_step} of {stage.steps}"


class _Fault(NamedTuple):
    """The end of a trainer that has not trained all its steps."""

    words: str
    error: ForgeError
    is_elsewhere: bool = False
    """True if ranks on another machine ended first."""


async def _train(
    run: RunContext, stage: SftStage | GrpoStage, job: TrainerJob, desk: TrainerDesk,
    doing: Callable[[], str],
) -> _Fault | None:  # fmt: skip
    """One trainer, on all its machines, until it ends. None if the last step is published."""
    table, say = run.experiment.cluster, run.console.say
    async with open_ranks(run.cluster, table, job, say=say) as ranks:
        desk.last_heard, desk.failure = time.monotonic(), None
        async with open_trainer(ranks.job, observer=run.observer) as child:
            fault = await _until_exit(run, stage, child, desk, ranks, doing)
            if desk.published.step >= stage.steps:
                return None
            if run.stop.is_set and fault is None and child.exit_reason in SAVED:
                raise run.stop.stopped()
            return fault or _Fault(f"trainer: {child.exit_reason}", child.died(doing=doing()))


async def _until_exit(
    run: RunContext, stage: SftStage | GrpoStage, child: Child, desk: TrainerDesk, ranks: Ranks,
    doing: Callable[[], str],
) -> _Fault | None:  # fmt: skip
    """Wait for the trainer to end, and pass a stop request on to it. Returns None if it ended by
    itself, otherwise the reason for which it was killed."""
    fault: _Fault | None = None

    async def pass_on_stop() -> None:
        await run.stop.wait()
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
        await anyio.sleep(STOP_GRACE_S)
        await end(asked="to finish its step and save", silent_s=STOP_GRACE_S)

    async def watch() -> None:
        while True:
            await anyio.sleep(WATCH_EVERY_S)
            silent_s = time.monotonic() - desk.last_heard
            if silent_s > stage.step_timeout_s:
                return await end(asked=f"step {desk.trained_step + 1}", silent_s=silent_s)

    async def end(*, asked: str, silent_s: float) -> None:
        nonlocal fault
        child.dump_stacks()
        await anyio.sleep(STACKS_S)
        fault = _Fault("trainer: silent", child.stalled(asked=asked, silent_s=silent_s))
        await child.kill()

    async def find_loss() -> None:
        nonlocal fault
        lost = await ranks.lost()
        if not is_cause(lost):
            with anyio.move_on_after(CAUSE_S):
                await child.wait()
                return
        desk.failure = desk.failure or lost.failure
        fault = _Fault(f"{lost.name}: {lost.reason}", lost.died(doing=doing()), is_elsewhere=True)

    async def watch_others() -> None:
        await find_loss()
        await child.kill()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pass_on_stop)
        tasks.start_soon(watch)
        tasks.start_soon(watch_others)
        await child.wait()
        if ranks.hosted and fault is None and child.exit_reason not in SAVED:
            with anyio.move_on_after(CAUSE_S):
                await find_loss()
        tasks.cancel_scope.cancel()
    return fault


def make_job(
    run: RunContext, stage: SftStage | GrpoStage, desk: TrainerDesk, *, start: Weights,
    rows_path: Path | None,
) -> TrainerJob:  # fmt: skip
    experiment, placement = run.experiment, run.placement
    is_fast = experiment.serve.precision == "fast"
    return TrainerJob(
        stage=resolve_auto(stage, placement, model=experiment.model, model_dir=start.full),
        model=experiment.model, model_dir=start.full, adapter=start.adapter, rows_path=rows_path,
        rollout=experiment.rollout, seed=experiment.seed,
        work_dir=run.paths.checkpoints / f"stage-{desk.stage}", weights_dir=run.paths.weights,
        control_socket=run.control_socket, log_dir=run.log_dir,
        gpus=placement.train_uuids, shared_gpus=placement.shared,
        # Engines that compute in bf16 get bf16, which halves the bytes.
        publish_dtype="bfloat16" if is_fast and placement.train else None,
        shares_weights=experiment.serve.weights == "ipc",
        # Engines that sleep during a step are awake only for a publish before the next batch.
        eval_every=1 if placement.sleeps else experiment.eval.every,
        publish_timeout_s=publish_timeout_s(experiment.serve),
    )  # fmt: skip


def resolve_auto(
    stage: Stage, placement: Placement, *, model: ModelTable, model_dir: Path
) -> Stage:
    packing = is_packed(stage, model, gpus=placement.train, model_dir=model_dir)
    found: dict[str, object] = {"packing": packing}
    if stage.parallel == "auto":
        found["parallel"] = placement.parallel
    if stage.gradient_checkpointing is None and placement.train:
        found["gradient_checkpointing"] = placement.recomputes
    return stage.model_copy(update=found)


def publish_timeout_s(serve: ServeTable) -> float:
    """Maximum duration of a publish: each replica in turn finishes its requests, restarts and
    answers; the same time once more for running turns and the probe."""
    start_s = serve.start_timeout_s or max(kind.start_timeout_s for kind in ENGINES.values())
    return (serve.replicas + 1) * (2 * serve.request_timeout_s + start_s)


def memory_error(failure: Mapping[str, Any], *, doing: str, is_halved: bool) -> str:
    """One line about the GPU memory that ran out, from the trainer's own report."""
    held = f"micro-batches of {failure['micro_batch_tokens']} tokens"
    again = ", again after they were halved" if is_halved else ""
    return (
        f"trainer: GPU memory ran out in {doing}{again}: {held}, peak "
        f"{gigabytes(failure['peak_bytes'])}, free {gigabytes(failure['free_bytes'])} on rank "
        f"{failure['rank']}"
    )


def memory_advice(run: RunContext, job: TrainerJob) -> str:
    """Settings that take less memory and are not in use yet; first those that the checkpoint can
    continue with."""
    stage = job.stage
    now = ["fewer micro_batch_tokens"]
    if stage.gradient_checkpointing is False:
        now.append("gradient_checkpointing = true")
    new = [] if job.model.lora or job.adapter else ["[model.lora]"]
    new.append(f"a smaller max_{'completion_tokens' if stage.kind == 'grpo' else 'length'}")
    return (
        f"Allowed: {' or '.join(now)} in {run.paths.experiment}, and {run.stop.resume}; in a new "
        f'run also {", ".join(new)}, or more devices.train with parallel = "fsdp2"'
    )
