"""The grpo stage: rollouts, training and publishing run concurrently, at most `max_staleness` steps
apart.

    produce_batches ──▶ desk ──▶ trainer ── publish ──▶ weights ──▶ replicas
           ▲                                   │
           └────── PublishedSteps.advance ◀────┘ (pacing)

Engines sleep while the trainer trains, where both do not fit one card at once:

    trainer asks, a batch is there ─▶ engines finish, sleep ─▶ the batch is handed out
    trainer acknowledges the step  ─▶ engines wake ─▶ its weights are published ─▶ turns continue

The desk holds a batch back until the engines are asleep, and a publish waits until they are awake.
Generation and training take turns then: only judging overlaps. Turns wait at the gate from before
the sleep until after the publish: a turn that began with weights about to be replaced would delay
their successor. After a trainer died the engines wake: the next one publishes before it takes a
batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from forge.config.schema import GrpoStage
from forge.records import Metrics, Problem, Split
from forge.rollout.batches import Batch, BatchPlan
from forge.rollout.past import Past, recall, still_of_use
from forge.rollout.ports import Ports
from forge.rollout.producer import produce_batches
from forge.rollout.sampling import Sampler, make_sampler
from forge.runner.live.progress import follow_steps, group_numbers
from forge.runner.stages.checkpoints import BatchShelf, StageCheckpoints
from forge.runner.stages.desk import Engines, TrainerDesk, TrainerState
from forge.runner.stages.evaluate import Midway, evaluated_steps
from forge.runner.stages.run_context import RunContext
from forge.runner.stages.trainer import own_trainer
from forge.runner.weights.sync import TurnGate, choose_turnover
from forge.serve.port import PREFIX_CACHE
from forge.serve.replicas import Replicas
from forge.serve.weights import Weights
from forge.store.reader import open_run
from forge.store.resume import untrained_groups
from forge.train.checkpoints import ResumePoint, is_kept

_EVIDENCE = """
SELECT problem_id, avg(r * r) - avg(r) * avg(r) FROM (
    SELECT g.problem_id, g.stage, t.turn_row, t.discounted_return AS r,
        CASE g.purpose WHEN 'train' THEN g.group_id END AS part
    FROM groups g JOIN turns t USING (group_id)
    WHERE g.purpose IN ('train', 'search') AND g.stage < ? AND t.discounted_return IS NOT NULL)
GROUP BY problem_id, stage, part HAVING count(*) > 1 ORDER BY max(turn_row)
"""
"""Variance of the returns of earlier stages' groups; the answers of a search are one group."""


async def run_grpo_stage(
    run: RunContext, stage: GrpoStage, index: int, *, start: Weights, back_to: int | None = None
) -> None:
    shelf, rollout = BatchShelf(run.paths.batches, stage=index), run.experiment.rollout
    checkpoints = StageCheckpoints(run, stage, index)
    point = await _continue_from(checkpoints, shelf, back_to)
    desk = TrainerDesk(
        run, shelf, checkpoints, stage=index, last_step=stage.steps,
        is_kept=partial(is_kept, steps=stage.steps, save_every=stage.save_every),
        steps=await anyio.to_thread.run_sync(_published_steps, run, index),
        # Until the trainer has published its checkpoint, the engines may serve later steps.
        published=-rollout.max_staleness - 1 if point.step else 0,
    )  # fmt: skip
    problems = run.problems_of(Split.GRPO)
    weights = run.experiment.problems.weights
    seed = run.experiment.seed + (stage.round or 1) - 1  # each round begins with other problems
    sampler = make_sampler(rollout.sampler, problems, seed=seed, weights=weights)
    plan = _batch_plan(run, stage, index, first_step=shelf.last_step + 1)
    step_of = partial(_step_of, run, desk)
    past = await anyio.to_thread.run_sync(
        recall_groups, run, shelf, sampler, problems, plan, step_of
    )
    evaluated = await anyio.to_thread.run_sync(evaluated_steps, run, index)
    midway = desk.evaluations = Midway(run, stage, desk, evaluated=evaluated)
    _set_turnover(run, start)
    run.progress.enter(
        stage.label(index), stage=index, total=stage.steps, unit="steps", busy=run.busy()
    )
    send, receive = anyio.create_memory_object_stream[Batch](0)
    producing = anyio.CancelScope()

    rules = run.rules(
        group_size=rollout.group_size, max_turns=rollout.max_turns, temperature=rollout.temperature
    )

    async def produce() -> None:
        with producing:
            await produce_batches(
                plan, sampler=sampler, rules=rules, ports=_training_ports(run),
                published=desk.published, group_ids=run.group_ids, sample_ids=run.sample_ids,
                out=send, step_of=step_of, past=past,
            )  # fmt: skip

    async def stop_producing() -> None:
        await run.stop.wait()
        producing.cancel()
        desk.stop()

    with run.training(desk):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(produce)
            tasks.start_soon(_offer, run, desk, receive)
            tasks.start_soon(stop_producing)
            tasks.start_soon(partial(follow_steps, run.progress, run.paths, stage=index))
            tasks.start_soon(midway.run)
            if run.placement.sleeps and (engines := run.weights.serving) is not None:
                tasks.start_soon(alternate_with_training, engines, desk, run.weights.gate)
            await own_trainer(run, stage, desk, point=point, start=start)
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


def recall_groups(
    run: RunContext, shelf: BatchShelf, sampler: Sampler, problems: Sequence[Problem],
    plan: BatchPlan, step_of: Callable[[int], int],
) -> Past:  # fmt: skip
    """The groups that an earlier attempt began and did not offer. Restores the sampler if there is
    a state; a new one learns from the searches and GRPO of earlier stages. Reads the store: call it
    in a thread."""
    with open_run(run.paths) as reader:
        found = untrained_groups(reader, stage=plan.stage)
        known = reader.query(_EVIDENCE, (plan.stage,)).rows if shelf.last_state is None else ()
    offered = shelf.groups()
    untrained = still_of_use(
        (group for group in found if group.group_id not in offered), plan, step_of=step_of
    )
    if shelf.last_state is None:
        for name, varied in known:
            sampler.learn(name, max(0.0, varied))
        return Past(ended=untrained)
    sampler.restore(shelf.last_state["sampler"])
    return recall(shelf.last_state, untrained=untrained, problems=problems)


async def _offer(
    run: RunContext, desk: TrainerDesk, batches: MemoryObjectReceiveStream[Batch]
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
    with open_run(run.paths) as reader:
        found = reader.query("SELECT version, step FROM policies WHERE stage = ?", (stage,))
    return dict(found.rows)


def _step_of(run: RunContext, desk: TrainerDesk, version: int) -> int:
    """The step of this stage that published a version; 0 for versions from before the stage."""
    step = run.weights.step_of(version, stage=desk.stage)
    return desk.steps.get(version, 0) if step is None else step


def _set_turnover(run: RunContext, start: Weights) -> None:
    rollout, model = run.experiment.rollout, run.experiment.model
    assert run.replicas is not None
    run.weights.gate.turnover = choose_turnover(
        max_staleness=rollout.max_staleness, in_flight=rollout.in_flight,
        is_adapter=model.lora is not None or start.adapter is not None,
        num_replicas=run.experiment.serve.num_servers, features=run.replicas.features,
    )  # fmt: skip


def _training_ports(run: RunContext) -> Ports:
    assert run.replicas is not None
    is_apart = PREFIX_CACHE in run.replicas.features
    return replace(run.ports(), load=run.replicas.load, is_apart=is_apart)


def _batch_plan(run: RunContext, stage: GrpoStage, index: int, *, first_step: int) -> BatchPlan:
    rollout = run.experiment.rollout
    assert run.pool is not None
    return BatchPlan(
        stage=index, first_step=first_step, last_step=stage.steps,
        groups_per_step=rollout.groups_per_step, max_staleness=rollout.max_staleness,
        max_replacements=math.floor(rollout.max_replacements * rollout.groups_per_step),
        scale=rollout.scale, advantage=rollout.advantage, leave_one_out=rollout.leave_one_out,
        train_truncated=rollout.train_truncated, replay=rollout.replay,
        publish_timeout_s=stage.step_timeout_s * (rollout.max_staleness + 1),
        in_flight=None if rollout.groups_in_flight == "auto" else rollout.groups_in_flight,
        judge_capacity=sum(seat.capacity for seat in run.pool.seating.seats),
    )  # fmt: skip


async def alternate_with_training(engines: Replicas, desk: TrainerDesk, gate: TurnGate) -> None:
    """Runs until cancelled; leaves the engines awake and the gate open."""
    desk.engines_sleep = True
    try:
        while True:
            await desk.wait_until(lambda: desk.is_sleep_wanted)
            desk.set_engines(Engines.CHANGING)
            gate.hold()
            await engines.sleep()
            desk.set_engines(Engines.ASLEEP)
            await desk.wait_until(partial(_is_step_over, desk, desk.num_handed_out))
            desk.set_engines(Engines.CHANGING)
            await engines.wake()
            desk.set_engines(Engines.AWAKE)
            await desk.wait_until(lambda: desk.is_publishing or desk.state is TrainerState.WAITING)
            await desk.wait_until(lambda: not desk.is_publishing)
            gate.release()
    finally:
        gate.release()
        with anyio.CancelScope(shield=True):
            await engines.wake()
        desk.engines_sleep = False
        desk.set_engines(Engines.AWAKE)


def _is_step_over(desk: TrainerDesk, num_before: int) -> bool:
    """True once the next batch was handed out and is no longer trained, or a publish began."""
    is_trained = desk.num_handed_out > num_before and desk.state is not TrainerState.TRAINING
    return is_trained or desk.is_publishing


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
            "rollout/tokens/sum": float(sum(t.completion.num_tokens for t in turns)),
            "rollout/in_flight_groups/count": float(batch.in_flight),
            "rollout/stale_groups/count": float(batch.num_stale),
            "rollout/replayed_groups/count": float(batch.num_replayed),
        },
    )
