"""Owning the trainer child of a stage: its desk in control.sock, a watchdog, restarts from
checkpoints.

    own_trainer ── open_trainer ──▶ child ── take, trained, publish, checkpoint ──▶ control.sock ──▶
    desk
        ├── watch: silent past step_timeout_s: stacks dumped, named, ended
        └── stop:  SIGTERM; it finishes its step, saves, exits 0

"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio

from forge.errors import ForgeError, Stopped
from forge.records import Event, Metrics
from forge.train.handle import open_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from forge.config.schema import GrpoStage, SftStage
    from forge.process.child import Child
    from forge.rollout.pacing import PublishedSteps
    from forge.runner.context import Run
    from forge.runner.desk import TrainerDesk
    from forge.runner.weights import Probe
    from forge.serve.weights import Weights

WATCH_EVERY_S = 1.0
STOP_GRACE_S = 120.0
"""A trainer that was asked to stop may finish its step and write a checkpoint."""
SHOWN = ("loss", "tokens_per_s")
"""Of the trainer's numbers, those on the live line."""


@contextmanager
def plugged(
    run: Run,
    desk: TrainerDesk,
    published: PublishedSteps,
    *,
    keep: Callable[[int], bool],
    after: Callable[[int], None] = lambda step: None,
) -> Iterator[None]:
    """The control socket speaks for this stage while inside.

    Args:
        keep: Whether the weights of a step stay on disk when the next version takes over.
        after: Called once a step's weights are served.

    """

    async def on_publish(path: Path, step: int, probe: Probe | None) -> int:
        row = await run.weights.publish(
            path, stage=desk.stage, step=step, probe=probe, keep=keep(step)
        )
        desk.steps[row.version] = step
        run.progress.policy_version = row.version
        values = {
            "weights/publish/seconds": row.publish_s,
            "weights/probe_gap/mean": row.probe_gap,
            **idle_shares(run, desk),
        }
        await run.writer.put(Metrics(stage=desk.stage, step=step, at=time.time(), values=values))
        published.advance(step)
        after(step)
        return row.version

    def on_progress(body: dict[str, Any]) -> None:
        run.progress.done = max(run.progress.done, int(body.get("step", 0)))
        show(body.get("metrics", {}))

    def on_trained(step: int, metrics: dict[str, float]) -> None:
        run.progress.done = max(run.progress.done, step)
        show(metrics)

    def show(metrics: dict[str, float]) -> None:
        short = {name.split("/")[-1]: value for name, value in metrics.items()}
        run.progress.numbers.update({name: short[name] for name in SHOWN if name in short})

    control = run.control
    control.desk, control.on_publish = desk, on_publish
    control.on_progress, control.on_trained = on_progress, on_trained
    try:
        yield
    finally:
        desk.stop()  # wakes a pending take, which would hold up the socket's end
        control.desk = control.on_publish = None


def idle_shares(run: Run, desk: TrainerDesk) -> dict[str, float]:
    """Idle share by role since the stage began, 0..1; also updates the display.

    A role is idle while it has no request in progress; the trainer, while it waits for a batch.
    """
    wall = max(time.monotonic() - run.progress.stage_started_at, 1e-9)
    run.progress.measure_idle(run.busy())
    run.progress.idle["trainer"] = min(desk.waited_s / wall, 1.0)
    return {f"idle/{role}/share": share for role, share in run.progress.idle.items()}


async def own_trainer(
    run: Run,
    stage: SftStage | GrpoStage,
    desk: TrainerDesk,
    published: PublishedSteps,
    *,
    start: Weights,
    rows_path: Path | None = None,
) -> None:
    """Run the trainer until the last step is published; restart a dead one from its last
    checkpoint.

    Raises:
        Stopped: the user asked for it; the trainer has saved.
        ChildDied, Stalled: it ended or fell silent more often than `restarts` allows.

    """
    for restart in range(stage.restarts + 1):
        desk.last_heard = time.monotonic()
        async with open_trainer(
            stage,
            model=run.experiment.model,
            model_dir=start.full,
            adapter=start.adapter,
            rows_path=rows_path,
            work_dir=run.paths.checkpoints / f"stage-{desk.stage}",
            weights_dir=run.paths.weights,
            control_socket=run.control_socket,
            socket_dir=run.socket_dir,
            log_dir=run.log_dir,
            seed=run.experiment.seed,
            rollout=run.experiment.rollout,
            observer=run.observer,
        ) as child:
            reason = await _until_exit(run, stage, child, desk)
            if run.stop.is_set:
                raise Stopped(run.stop.reason or "stopped")
            if published.step >= stage.steps:
                return
            doing = f"stage {stage.kind}-{desk.stage}, step {desk.trained_step} of {stage.steps}"
            error: ForgeError = child.died(doing=doing)
        if restart == stage.restarts:
            raise error
        message = f"trainer: {reason} in {doing}; restarted from its last checkpoint"
        await run.writer.put(Event(at=time.time(), kind="child_restart", message=message))
        run.console.say(message)


async def _until_exit(
    run: Run, stage: SftStage | GrpoStage, child: Child, desk: TrainerDesk
) -> str:
    """The exit reason. A stop request is passed on; a silent trainer is dumped, named and ended."""

    async def pass_on_stop() -> None:
        await run.stop.wait()
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
        await anyio.sleep(STOP_GRACE_S)
        await child.kill()

    async def watch() -> None:
        while True:
            await anyio.sleep(WATCH_EVERY_S)
            silent_s = time.monotonic() - desk.last_heard
            if silent_s > stage.step_timeout_s:
                child.dump_stacks()
                await anyio.sleep(1.0)
                raise child.stalled(asked=f"step {desk.trained_step + 1}", silent_s=silent_s)

    reason = ""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pass_on_stop)
        tasks.start_soon(watch)
        reason = await child.wait()
        tasks.cancel_scope.cancel()
    return reason
