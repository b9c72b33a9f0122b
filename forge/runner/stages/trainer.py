"""The supervisor's ownership of a trainer child: start, watch, restart from checkpoints, stop.

own_trainer ── open_trainer ──▶ child ── take, trained, publish, checkpoint ──▶ control.sock
    ├── watch  silent past step_timeout_s: stacks dumped, killed, restarted as if it had died
    └── stop   SIGTERM; it finishes its step, saves, exits 0
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from forge.errors import MachineError
from forge.process.child import describe_exit
from forge.records import Event
from forge.runner.stages.trainer_job import make_job, memory_advice, memory_error
from forge.train.handle import open_trainer

if TYPE_CHECKING:
    from pathlib import Path

    from forge.config.schema import GrpoStage, SftStage
    from forge.errors import Stalled
    from forge.process.child import Child
    from forge.rollout.pacing import PublishedSteps
    from forge.runner.stages.run_context import RunContext
    from forge.runner.stages.trainer_desk import TrainerDesk
    from forge.serve.weights import Weights

WATCH_EVERY_S = 1.0
STOP_GRACE_S = 120.0
"""Time for a trainer to finish its step and write a checkpoint after a stop request."""
STACKS_S = 1.0
"""Time from the signal that dumps a child's stacks until they are in its log."""
SAVED = (describe_exit(0), describe_exit(-signal.SIGTERM))
"""Exit reasons of a stopped trainer that has lost nothing: it ended by itself, or the signal ended
it while it was still starting and had no handler."""
SCALES = (1.0, 0.5)
"""Micro-batch sizes to try, relative to the configured one: the second after GPU memory ran out."""


async def own_trainer(
    run: RunContext,
    stage: SftStage | GrpoStage,
    desk: TrainerDesk,
    published: PublishedSteps,
    *,
    start: Weights,
    rows_path: Path | None = None,
) -> None:
    """Run the trainer until the last step is published. A dead or silent trainer is restarted from
    its last checkpoint. After GPU memory ran out it continues once with micro-batches of half the
    size, which does not count as a restart.

    Raises:
        Stopped: a stop was requested; the trainer has saved.
        ChildDied, Stalled: it ended or was silent more often than `restarts` allows, or instead of
            saving.
        MachineError: micro-batches of half the size did not fit either.
    """
    restarts, scales = 0, iter(SCALES)
    job = make_job(run, stage, desk, start=start, rows_path=rows_path)
    scale = next(scales)
    while True:
        desk.trainer_ended()
        desk.trainer_starts()
        # A restarted trainer first publishes its checkpoint, which must not change the weights
        # under a running evaluation.
        await desk.wait_until(lambda: not (desk.is_held or desk.is_publishing))
        desk.last_heard, desk.failure = time.monotonic(), None
        scaled = replace(job, micro_batch_scale=scale)
        async with open_trainer(scaled, observer=run.observer) as child:
            silence = await _until_exit(run, stage, child, desk)
            if published.step >= stage.steps:
                return
            if run.stop.is_set and silence is None and child.exit_reason in SAVED:
                raise run.stop.stopped()
            doing = f"stage {stage.kind}-{desk.stage}, step {desk.trained_step} of {stage.steps}"
            error = silence or child.died(doing=doing)
        if desk.failure is not None:
            scale = next(scales, 0.0)
            words = memory_error(desk.failure, doing=doing, is_halved=scaled.micro_batch_scale < 1)
            if run.stop.is_set:
                raise MachineError(f"{words}, while stopping. {run.stop.resume}") from error
            if not scale:
                raise MachineError(f"{words}. {memory_advice(run, job)}") from error
            message = f"{words}; restarted with half of that from its last checkpoint"
        elif run.stop.is_set or restarts == stage.restarts:
            raise error
        else:
            restarts += 1
            reason = "silent" if silence else child.exit_reason
            message = f"trainer: {reason} in {doing}; restarted from its last checkpoint"
        desk.num_restarts += 1
        await run.writer.put(Event(at=time.time(), kind="child_restart", message=message))
        run.console.say(message)


async def _until_exit(
    run: RunContext, stage: SftStage | GrpoStage, child: Child, desk: TrainerDesk
) -> Stalled | None:
    """Wait for the trainer to end, and pass a stop request on to it. Returns None if it ended by
    itself, otherwise the error for which it was killed."""
    silence: Stalled | None = None

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
        nonlocal silence
        child.dump_stacks()
        await anyio.sleep(STACKS_S)
        silence = child.stalled(asked=asked, silent_s=silent_s)
        await child.kill()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pass_on_stop)
        tasks.start_soon(watch)
        await child.wait()
        tasks.cancel_scope.cancel()
    return silence
