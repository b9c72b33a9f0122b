"""The grpo stage: rollouts, training and publishing run concurrently, at most `max_staleness` steps
apart.

    produce_batches ──▶ desk ──▶ trainer ── publish ──▶ weights ──▶ replicas
           ▲                                   │
           └────── PublishedSteps.advance ◀────┘ (pacing)

Every n steps, and on request, the published weights are evaluated (`midway.py`): the trainer gets
its next batch afterwards, which is played meanwhile.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from forge.records import Metrics, Split
from forge.rollout.admission import PublishedSteps
from forge.rollout.batches import Batch, BatchPlan
from forge.rollout.producer import produce_batches
from forge.rollout.sampling import make_sampler
from forge.runner.live.progress import follow_steps, group_numbers
from forge.runner.stages.batch_shelf import BatchShelf, recall_groups
from forge.runner.stages.checkpoints import StageCheckpoints
from forge.runner.stages.engine_sleep import alternate_with_training
from forge.runner.stages.midway import Midway, evaluated_steps
from forge.runner.stages.plug import TrainerPlug, plugged_in
from forge.runner.stages.trainer import own_trainer
from forge.runner.stages.trainer_desk import TrainerDesk
from forge.runner.weights.sync import choose_turnover
from forge.serve.port import PREFIX_CACHE
from forge.store.reader import open_run
from forge.train.checkpoints import is_kept

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream

    from forge.config.schema import GrpoStage
    from forge.rollout.play import Rules
    from forge.rollout.ports import Ports
    from forge.runner.stages.run_context import RunContext
    from forge.serve.weights import Weights
    from forge.train.checkpoints import ResumePoint


async def run_grpo_stage(
    run: RunContext, stage: GrpoStage, index: int, *, start: Weights, back_to: int | None = None
) -> None:
    """Run a `[[stage]]` of kind grpo; from step `back_to` if given. Raises as `own_trainer`."""
    shelf = BatchShelf(run.paths.batches, stage=index)
    checkpoints = StageCheckpoints(run, stage, index)
    point = await _continue_from(checkpoints, shelf, back_to)
    desk = TrainerDesk(
        shelf, stage=index, last_step=stage.steps, sink=run.writer,
        steps=await anyio.to_thread.run_sync(_published_steps, run, index),
    )  # fmt: skip
    problems, rollout = run.problems_of(Split.GRPO), run.experiment.rollout
    weights, seed = run.experiment.problems.weights, run.experiment.seed
    sampler = make_sampler(rollout.sampler, problems, seed=seed, weights=weights)
    plan = _batch_plan(run, stage, index, first_step=shelf.last_step + 1)
    step_of = partial(_step_of, run, desk)
    past = await anyio.to_thread.run_sync(
        recall_groups, run, shelf, sampler, problems, plan, step_of
    )
    # Until the trainer has published its checkpoint, the engines may serve later steps.
    published = PublishedSteps(-rollout.max_staleness - 1 if point.step else 0)
    evaluated = await anyio.to_thread.run_sync(evaluated_steps, run, index)
    midway = Midway(run, stage, desk, published, evaluated=evaluated)
    _set_turnover(run, start)
    run.progress.enter(
        f"grpo-{index}", stage=index, total=stage.steps, unit="steps", busy=run.busy()
    )
    send, receive = anyio.create_memory_object_stream[Batch](0)
    producing = anyio.CancelScope()

    async def produce() -> None:
        with producing:
            await produce_batches(
                plan, sampler=sampler, rules=_training_rules(run), ports=_training_ports(run),
                published=published, group_ids=run.group_ids, sample_ids=run.sample_ids,
                out=send, step_of=step_of, past=past,
            )  # fmt: skip

    async def stop_producing() -> None:
        await run.stop.wait()
        producing.cancel()
        desk.stop()

    is_step_kept = partial(is_kept, steps=stage.steps, save_every=stage.save_every)
    plug = TrainerPlug(
        run, desk, published, checkpoints=checkpoints, is_kept=is_step_kept, midway=midway
    )
    with plugged_in(run, plug):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(produce)
            tasks.start_soon(_offer, run, desk, receive)
            tasks.start_soon(stop_producing)
            tasks.start_soon(partial(follow_steps, run.progress, run.paths, stage=index))
            tasks.start_soon(midway.run)
            if run.placement.sleeps and run.replicas is not None:
                tasks.start_soon(alternate_with_training, run.replicas, desk, run.weights.gate)
            await own_trainer(run, stage, desk, published, checkpoints, point=point, start=start)
            await midway.finish()
            tasks.cancel_scope.cancel()


async def _continue_from(
    checkpoints: StageCheckpoints, shelf: BatchShelf, back_to: int | None
) -> ResumePoint:
    """The checkpoint to continue, chosen and with what it needs; of step `back_to` if given."""
    if back_to is not None:
        await checkpoints.go_back(back_to, shelf)
    point = await checkpoints.choose()
    await checkpoints.recover(shelf, point)
    return point


async def _offer(
    run: RunContext,
    desk: TrainerDesk,
    batches: MemoryObjectReceiveStream[Batch],
) -> None:
    """Make each batch available, after its samples are in run.db: a resumed run would give out the
    ids in the batch file again."""
    async with batches:
        async for batch in batches:
            await run.writer.put(_batch_metrics(desk.stage, batch))
            await run.writer.flush()
            for version in {sample.policy_version for sample in batch.samples}:
                # Its publish may still be running: samples can be drawn in the middle of it.
                desk.steps[version] = _step_of(run, desk, version)
            await desk.offer(batch)


def _published_steps(run: RunContext, stage: int) -> dict[int, int]:
    """Policy version to step, for weights that earlier attempts published in this stage."""
    with open_run(run.paths) as reader:
        found = reader.query("SELECT version, step FROM policies WHERE stage = ?", (stage,))
    return dict(found.rows)


def _step_of(run: RunContext, desk: TrainerDesk, version: int) -> int:
    """The step of this stage that published a version; 0 for versions from before the stage."""
    step = run.weights.step_of(version, stage=desk.stage)
    return desk.steps.get(version, 0) if step is None else step


def _set_turnover(run: RunContext, start: Weights) -> None:
    """Choose how the publishes of this stage treat running turns."""
    rollout, model = run.experiment.rollout, run.experiment.model
    assert run.replicas is not None
    run.weights.gate.turnover = choose_turnover(
        max_staleness=rollout.max_staleness,
        in_flight=rollout.in_flight,
        is_adapter=model.lora is not None or start.adapter is not None,
        num_replicas=run.experiment.serve.num_servers,
        features=run.replicas.features,
    )


def _training_rules(run: RunContext) -> Rules:
    rollout = run.experiment.rollout
    return run.rules(
        group_size=rollout.group_size,
        max_turns=rollout.max_turns,
        temperature=rollout.temperature,
    )


def _training_ports(run: RunContext) -> Ports:
    assert run.replicas is not None
    is_apart = PREFIX_CACHE in run.replicas.features
    return replace(run.ports(), load=run.replicas.load, is_apart=is_apart)


def _batch_plan(run: RunContext, stage: GrpoStage, index: int, *, first_step: int) -> BatchPlan:
    rollout, serve = run.experiment.rollout, run.experiment.serve
    most = serve.max_concurrency and serve.max_concurrency * serve.num_servers // rollout.group_size
    assert run.pool is not None
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
        replay=rollout.replay,
        in_flight=None if rollout.groups_in_flight == "auto" else rollout.groups_in_flight,
        most_in_flight=most,
        judge_capacity=sum(seat.capacity for seat in run.pool.seating.seats),
    )


def _batch_metrics(stage: int, batch: Batch) -> Metrics:
    turns = [turn for g in batch.groups for t in g.trajectories for turn in t.turns]
    numbers = group_numbers(batch.groups)
    return Metrics(
        stage=stage,
        step=batch.step,
        at=time.time(),
        values={
            "rollout/reward/mean": numbers["reward"],
            "rollout/pass_at_1/mean": numbers["pass_rate"],
            "rollout/groups/count": float(len(batch.groups)),
            "rollout/flat_groups/count": float(batch.num_flat),
            "rollout/samples/count": float(len(batch.samples)),
            "rollout/tokens/sum": float(sum(len(t.completion.token_ids) for t in turns)),
            "rollout/in_flight_groups/count": float(batch.in_flight),
            "rollout/stale_groups/count": float(batch.num_stale),
            "rollout/replayed_groups/count": float(batch.num_replayed),
        },
    )
