"""Training stages: own the trainer child, feed it, watch it, restart it from its last checkpoint.

sft    rows.jsonl ──▶ trainer ── publish ──▶ weights
grpo   produce_batches ──▶ desk ──▶ trainer ── publish ──▶ weights ──▶ replicas
           ▲── PublishedSteps.advance ◀────────┘ (pacing)        every n steps: evaluate, while the
           next batch is trained
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from forge.errors import ForgeError, Stopped
from forge.records import Event, Metrics, Problem, Split
from forge.rollout.batches import Batch, BatchPlan, produce_batches
from forge.rollout.pacing import PublishedSteps
from forge.rollout.play import Rules
from forge.rollout.sampler import UniformSampler
from forge.runner.desk import TrainerDesk
from forge.runner.evaluate import EvalSettings, evaluate, spread
from forge.runner.prepare import data_dir, write_sft_rows
from forge.runner.progress import GroupNumbers
from forge.runner.stepnumbers import step_metrics
from forge.store.layout import write_file
from forge.train.handle import open_trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forge.config.schema import GrpoStage, SftStage
    from forge.data.chat import ChatTemplate
    from forge.process.child import Child
    from forge.runner.context import Run
    from forge.runner.weights import Probe

WATCH_EVERY_S = 1.0
STOP_GRACE_S = 120.0
"""A trainer that was asked to stop may finish its step and write a checkpoint."""


async def run_sft_stage(run: Run, stage: SftStage, index: int, *, start_dir: Path) -> None:
    """An `[[stage]]` of kind sft. Raises Stopped when the user asked for it, after a checkpoint."""
    rows = data_dir(run.paths) / f"rows-{index}.jsonl"
    if not rows.exists():
        await _write_rows(run, stage, rows)
    desk = TrainerDesk(
        stage=index, last_step=stage.steps, batches_dir=run.paths.batches, sink=run.writer
    )
    run.progress.enter(f"sft-{index}", stage=index, total=stage.steps, unit="steps", busy={})
    published = PublishedSteps()
    with _plugged(run, desk, published, stage=index, keep=lambda step: True):
        await _own_trainer(run, stage, index, desk, published, start_dir=start_dir, rows_path=rows)


async def _write_rows(run: Run, stage: SftStage, rows: Path) -> None:
    from forge.runner.prepare import prepare_pairs

    pairs = await prepare_pairs(run.experiment, run.problems, paths=run.paths, judge=run.judge)
    chat: ChatTemplate = run.prompter.chat
    kept, dropped = await anyio.to_thread.run_sync(
        lambda: write_sft_rows(pairs, chat, stage=stage, path=rows)
    )
    message = f"{kept} rows, {dropped} dropped as longer than {stage.max_length} tokens"
    await run.writer.put(Event(at=time.time(), kind="sft_rows", message=message))


async def run_grpo_stage(run: Run, stage: GrpoStage, index: int, *, start_dir: Path) -> None:
    """An `[[stage]]` of kind grpo. Raises Stopped when the user asked for it, after a
    checkpoint."""
    rollout = run.experiment.rollout
    desk = TrainerDesk(
        stage=index, last_step=stage.steps, batches_dir=run.paths.batches, sink=run.writer
    )
    recovered = desk.recover()
    sampler = UniformSampler(run.of(Split.GRPO), seed=run.experiment.seed)
    _restore_sampler(run, sampler, index)
    published = PublishedSteps()
    plan = BatchPlan(
        stage=index,
        first_step=max(recovered, _trained_before(run, index)) + 1,
        last_step=stage.steps,
        groups_per_step=rollout.groups_per_step,
        max_replacements=math.floor(rollout.max_replacements * rollout.groups_per_step),
        max_staleness=rollout.max_staleness,
        scale=rollout.scale,
        train_truncated=rollout.train_truncated,
        publish_timeout_s=stage.step_timeout_s * (rollout.max_staleness + 1),
    )
    run.progress.enter(
        f"grpo-{index}", stage=index, total=stage.steps, unit="steps", busy=run.busy()
    )
    numbers = GroupNumbers(on_change=run.progress.numbers.update)
    send, receive = anyio.create_memory_object_stream[Batch](0)
    keep = _keep_rule(stage, run)
    evaluations = _Evaluations(run, stage, index)
    with _plugged(run, desk, published, stage=index, keep=keep, after=evaluations.after):
        async with anyio.create_task_group() as tasks:
            producing = anyio.CancelScope()

            async def produce() -> None:
                with producing:
                    await produce_batches(
                        plan,
                        sampler=sampler,
                        rules=training_rules(run),
                        ports=run.ports(),
                        published=published,
                        group_ids=run.group_ids,
                        sample_ids=run.sample_ids,
                        out=send,
                        on_group=numbers.add,
                    )

            async def offer() -> None:
                async with receive:
                    async for batch in receive:
                        await desk.offer(batch)
                        _save_sampler(run, index, batch)
                        await run.writer.put(_batch_metrics(index, batch))

            async def stop_producing() -> None:
                await run.stop.wait()
                producing.cancel()
                desk.stop()

            tasks.start_soon(produce)
            tasks.start_soon(offer)
            tasks.start_soon(stop_producing)
            tasks.start_soon(evaluations.run)
            await _own_trainer(
                run, stage, index, desk, published, start_dir=start_dir, rows_path=None
            )
            await evaluations.finish()
            tasks.cancel_scope.cancel()


def training_rules(run: Run) -> Rules:
    """How groups are played for training."""
    rollout = run.experiment.rollout
    return Rules(
        group_size=rollout.group_size,
        max_turns=rollout.max_turns,
        gamma=rollout.gamma,
        credit=rollout.credit,
        temperature=rollout.temperature,
        max_completion_tokens=rollout.max_completion_tokens,
        reward=run.experiment.reward,
        seed=run.experiment.seed,
    )


class _plugged:  # noqa: N801  (reads as a statement)
    """The control socket speaks for this stage while inside."""

    def __init__(
        self,
        run: Run,
        desk: TrainerDesk,
        published: PublishedSteps,
        *,
        stage: int,
        keep: Callable[[int], bool],
        after: Callable[[int], None] = lambda step: None,
    ) -> None:
        self.run, self.desk, self.published = run, desk, published
        self.stage, self.keep, self.after = stage, keep, after

    def __enter__(self) -> None:
        control, progress = self.run.control, self.run.progress
        control.desk = self.desk
        control.on_publish = self._publish

        def on_progress(body: dict) -> None:
            progress.done = max(progress.done, int(body.get("step", 0)))
            progress.numbers.update({k: float(v) for k, v in body.get("metrics", {}).items()})

        def on_trained(step: int, metrics: dict[str, float]) -> None:
            progress.done = max(progress.done, step)
            progress.numbers.update({k: metrics[k] for k in SHOWN_METRICS if k in metrics})

        control.on_progress, control.on_trained = on_progress, on_trained

    def __exit__(self, *exc: object) -> None:
        self.run.control.desk = None

    async def _publish(self, path: Path, step: int, probe: Probe | None) -> int:
        run = self.run
        row = await run.weights.publish(
            path, stage=self.stage, step=step, probe=probe, keep=self.keep(step)
        )
        run.progress.policy_version = row.version
        values = {
            "weights/publish/seconds": row.publish_s,
            "weights/probe_gap/mean": row.probe_gap,
            **step_metrics(run, self.desk),
        }
        await run.writer.put(Metrics(stage=self.stage, step=step, at=time.time(), values=values))
        self.published.advance(step)
        self.after(step)
        return row.version


SHOWN_METRICS = {"loss": "loss", "train/loss/mean": "loss"}
"""Trainer metrics on the live line."""


async def _own_trainer(
    run: Run,
    stage: SftStage | GrpoStage,
    index: int,
    desk: TrainerDesk,
    published: PublishedSteps,
    *,
    start_dir: Path,
    rows_path: Path | None,
) -> None:
    """Run the trainer until the last step is published; restart a dead one from its last
    checkpoint."""
    for restart in range(stage.restarts + 1):
        desk.last_heard = time.monotonic()
        async with open_trainer(
            stage,
            model=run.experiment.model,
            model_dir=start_dir,
            rows_path=rows_path,
            work_dir=run.paths.checkpoints / f"stage-{index}",
            weights_dir=run.paths.weights,
            control_socket=run.control_socket,
            socket_dir=run.socket_dir,
            log_dir=run.log_dir,
            rollout=run.experiment.rollout,
            seed=run.experiment.seed,
            observer=run.observer,
        ) as child:
            reason = await _until_exit(run, stage, child, desk)
            if run.stop.is_set:
                raise Stopped(run.stop.reason or "stopped")
            if published.step >= stage.steps:
                return
            error: ForgeError = child.died(
                doing=f"stage {index}, step {published.step} of {stage.steps}"
            )
        if restart == stage.restarts:
            raise error
        message = f"trainer ended at step {published.step} of {stage.steps}: {reason}; restarted"
        await run.writer.put(Event(at=time.time(), kind="child_restart", message=message))
        run.console.say(message)


async def _until_exit(
    run: Run, stage: SftStage | GrpoStage, child: Child, desk: TrainerDesk
) -> str:
    """Wait for the trainer's end. A stop request is passed on; a silent trainer is named, dumped
    and ended."""

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

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pass_on_stop)
        tasks.start_soon(watch)
        reason = await child.wait()
        tasks.cancel_scope.cancel()
    return reason


class _Evaluations:
    """Evaluations in between: every `eval.every` steps on a fixed part of the held-out problems,
    beside training."""

    def __init__(self, run: Run, stage: GrpoStage, index: int) -> None:
        self.run_, self.stage, self.index = run, stage, index
        self.send, self.receive = anyio.create_memory_object_stream[int](1)
        self.problems: list[Problem] = spread(
            run.of(Split.HELDOUT), run.experiment.eval.num_problems
        )
        self.settings = EvalSettings(
            samples=1, greedy=False, max_turns=run.experiment.eval.max_turns
        )
        self._done = anyio.Event()

    def after(self, step: int) -> None:
        """Called at each publish. One that comes while an earlier one is still played is
        skipped."""
        every = self.run_.experiment.eval.every
        if every and step % every == 0 and step < self.stage.steps:
            with suppress(anyio.WouldBlock):
                self.send.send_nowait(step)

    async def run(self) -> None:
        async with self.receive:
            async for step in self.receive:
                label = f"grpo-{self.index}@{step}"
                result = await evaluate(
                    self.run_, self.problems, self.settings,
                    label=label, stage=self.index, step=step, show=False,
                )  # fmt: skip
                self.run_.progress.numbers["held-out"] = result.pass_at_1
        self._done.set()

    async def finish(self) -> None:
        self.send.close()
        with anyio.move_on_after(self.run_.experiment.serve.request_timeout_s):
            await self._done.wait()


def _keep_rule(stage: GrpoStage, run: Run) -> Callable[[int], bool]:
    """Weights of checkpointed and last steps stay, so that `forge chat RUN@step` has them."""
    return lambda step: step % stage.save_every == 0 or step == stage.steps


def _batch_metrics(stage: int, batch: Batch) -> Metrics:
    turns = [turn for g in batch.groups for t in g.trajectories for turn in t.turns]
    rewards = [turn.reward for turn in turns if turn.reward is not None]
    first = [t.turns[0] for g in batch.groups for t in g.trajectories if t.turns]
    return Metrics(
        stage=stage,
        step=batch.step,
        at=time.time(),
        values={
            "rollout/reward/mean": sum(rewards) / max(len(rewards), 1),
            "rollout/pass_at_1/mean": sum(t.verdict.is_correct for t in first) / max(len(first), 1),
            "rollout/groups/count": float(len(batch.groups)),
            "rollout/flat_groups/count": float(batch.num_flat),
            "rollout/samples/count": float(len(batch.samples)),
            "rollout/tokens/sum": float(sum(len(turn.completion.token_ids) for turn in turns)),
        },
    )


def _sampler_file(run: Run, stage: int) -> Path:
    return run.paths.batches / f"sampler-{stage}.json"


def _save_sampler(run: Run, stage: int, batch: Batch) -> None:
    write_file(_sampler_file(run, stage), json.dumps({"step": batch.step, **batch.sampler_state}))


def _restore_sampler(run: Run, sampler: UniformSampler, stage: int) -> None:
    file = _sampler_file(run, stage)
    if file.exists():
        sampler.restore(json.loads(file.read_text()))


def _trained_before(run: Run, stage: int) -> int:
    """Last step whose batch was made in an earlier attempt, from the sampler's file."""
    file = _sampler_file(run, stage)
    return int(json.loads(file.read_text())["step"]) if file.exists() else 0
