"""The grpo stage: rollouts, trainer and weights at once, at most `max_staleness` steps apart.

    produce_batches ──▶ desk ──▶ trainer ── publish ──▶ weights ──▶ replicas
           ▲                                   │
           └────── PublishedSteps.advance ◀────┘ (pacing)

Every n steps the published weights are evaluated: the trainer gets its next batch afterwards, which
is played meanwhile.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio

from forge.records import Metrics, Split
from forge.rollout.batches import Batch, BatchPlan, produce_batches
from forge.rollout.pacing import PublishedSteps
from forge.rollout.play import Rules
from forge.rollout.sampler import UniformSampler
from forge.runner.desk import TrainerDesk
from forge.runner.evaluate import EvalSettings, evaluate, spread
from forge.runner.progress import GroupNumbers
from forge.runner.trainer import own_trainer, plugged
from forge.store.layout import write_file
from forge.store.reader import open_run
from forge.store.resume import played_groups
from forge.train.durable import is_kept

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.streams.memory import MemoryObjectReceiveStream

    from forge.config.schema import GrpoStage
    from forge.records import Group
    from forge.runner.context import Run
    from forge.serve.weights import Weights

EXCUSE_EVERY_S = 1.0
"""Far below every deadline that a held trainer could pass."""


async def run_grpo_stage(run: Run, stage: GrpoStage, index: int, *, start: Weights) -> None:
    """An `[[stage]]` of kind grpo. Raises Stopped when the user asked for it, after a
    checkpoint."""
    desk = TrainerDesk(
        stage=index, last_step=stage.steps, batches_dir=run.paths.batches, sink=run.writer,
        steps=await anyio.to_thread.run_sync(_published_steps, run, index),
    )  # fmt: skip
    sampler = UniformSampler(run.of(Split.GRPO), seed=run.experiment.seed)
    saved = _SamplerFile(run.paths.batches / f"sampler-{index}.json")
    first_step = max(desk.recover(), saved.restore(sampler)) + 1
    played = await anyio.to_thread.run_sync(_played_groups, run, index, first_step)
    plan = _batch_plan(run, stage, index, first_step)
    published = PublishedSteps()
    midway = _Midway(run, stage, desk, published)
    run.progress.enter(
        f"grpo-{index}", stage=index, total=stage.steps, unit="steps", busy=run.busy()
    )
    numbers = GroupNumbers(on_change=run.progress.numbers.update)
    keep = partial(is_kept, steps=stage.steps, save_every=stage.save_every)
    send, receive = anyio.create_memory_object_stream[Batch](0)
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
                played=played,
            )

    async def stop_producing() -> None:
        await run.stop.wait()
        producing.cancel()
        desk.stop()

    with plugged(run, desk, published, keep=keep, after=midway.after):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(produce)
            tasks.start_soon(_offer, run, desk, saved, receive)
            tasks.start_soon(stop_producing)
            tasks.start_soon(midway.run)
            await own_trainer(run, stage, desk, published, start=start)
            await midway.finish()
            tasks.cancel_scope.cancel()


async def _offer(
    run: Run, desk: TrainerDesk, saved: _SamplerFile, batches: MemoryObjectReceiveStream[Batch]
) -> None:
    """Make each batch durable, then available, then forgettable: the order is what resume relies
    on. A batch file whose samples run.db does not have would have its sample ids given out again.
    """
    async with batches:
        async for batch in batches:
            await run.writer.flush()
            await desk.offer(batch)
            await anyio.to_thread.run_sync(saved.write, batch)
            await run.writer.put(_batch_metrics(desk.stage, batch))


def _published_steps(run: Run, stage: int) -> dict[int, int]:
    """Version to step, of the weights that earlier attempts published in this stage."""
    with open_run(run.paths) as reader:
        found = reader.query("SELECT version, step FROM policies WHERE stage = ?", (stage,))
    return dict(found.rows)


def _played_groups(run: Run, stage: int, step: int) -> list[Group]:
    """What an earlier attempt finished of the batch that it was making when it ended."""
    with open_run(run.paths) as reader:
        return played_groups(reader, stage=stage, step=step)


def _batch_plan(run: Run, stage: GrpoStage, index: int, first_step: int) -> BatchPlan:
    rollout = run.experiment.rollout
    return BatchPlan(
        stage=index,
        first_step=first_step,
        last_step=stage.steps,
        groups_per_step=rollout.groups_per_step,
        max_replacements=math.floor(rollout.max_replacements * rollout.groups_per_step),
        max_staleness=rollout.max_staleness,
        scale=rollout.scale,
        train_truncated=rollout.train_truncated,
        publish_timeout_s=stage.step_timeout_s * (rollout.max_staleness + 1),
    )


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


class _SamplerFile:
    """The sampler's state after the last durable batch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, batch: Batch) -> None:
        write_file(self.path, json.dumps({"step": batch.step, **batch.sampler_state}))

    def restore(self, sampler: UniformSampler) -> int:
        """Put the sampler where it was; returns the step of the last batch, 0 for none."""
        if not self.path.exists():
            return 0
        state = json.loads(self.path.read_text())
        sampler.restore(state)
        return int(state["step"])


class _Midway:
    """Evaluations in between: every `eval.every` steps on a fixed part of the held-out problems.

    The weights must not change under one, so the trainer is held at its next `take`; a publish
    would have to wait instead, and all turns behind it.
    """

    def __init__(
        self, run: Run, stage: GrpoStage, desk: TrainerDesk, published: PublishedSteps
    ) -> None:
        self._run, self._stage, self._desk, self._published = run, stage, desk, published
        table = run.experiment.eval
        self._send, self._receive = anyio.create_memory_object_stream[int](1)
        self._problems = spread(run.of(Split.HELDOUT), table.num_problems)
        self._settings = EvalSettings(samples=1, greedy=False, max_turns=table.max_turns)
        self._done = anyio.Event()

    def after(self, step: int) -> None:
        """Called at each publish. One that comes while another waits to be played is skipped."""
        every = self._run.experiment.eval.every
        if every and step % every == 0 and step < self._stage.steps:
            with suppress(anyio.WouldBlock):
                self._send.send_nowait(step)
                self._desk.hold()

    async def run(self) -> None:
        """Play them as they are asked for, until `finish`. A stop drops the one being played."""
        async with self._send, self._receive:
            async for step in self._receive:
                async with self._run.stop.dropping() as beside:
                    beside.start_soon(self._excuse_trainer)
                    await self._play(step)
                self._desk.release()
        self._done.set()

    async def _play(self, step: int) -> None:
        result = await evaluate(
            self._run,
            self._problems,
            self._settings,
            label=f"grpo-{self._desk.stage}@{step}",
            stage=self._desk.stage,
            step=step,
            show=False,
        )
        self._run.progress.numbers["held_out"] = result.pass_at_1

    async def _excuse_trainer(self) -> None:
        """Nobody who waits for a publish shall count the time for which the trainer is held."""
        while True:
            self._published.advance(self._published.step)
            await anyio.sleep(EXCUSE_EVERY_S)

    async def finish(self) -> None:
        """No more are asked for; wait for the one that is being played, whose every request has a
        deadline of its own."""
        self._send.close()
        await self._done.wait()


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
            "rollout/tokens/sum": float(sum(len(t.completion.token_ids) for t in turns)),
        },
    )
