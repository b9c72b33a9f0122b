"""Speed-ups of an evaluation against the other baseline: torch.compile if judge.baseline is eager.

Called by `work.py` after an eval stage with `eval.both_baselines`. Further judges with the other
baseline judge the best timed kernel of each problem once more: a judgement and a baseline for each
solved problem, not for each answer. A baseline belongs to the problem, so the speed-ups of its
other kernels follow from their times. Each measurement is an event: a resumed run measures only
what is missing.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from forge.evalpool.pool import open_pool
from forge.process.sockets import open_socket_dir
from forge.records import Event, Trajectory
from forge.runner.stages.evaluate import finished_groups
from forge.store.reader import open_run
from forge.store.resume import events
from forge.views.statistics import measure_speed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.config.schema import JudgeTable
    from forge.evalpool.pool import Pool
    from forge.records import Evaluation, Problem, Turn
    from forge.runner.stages.run_context import RunContext

KIND = "other_baseline"
"""Kind of the event with a problem's other baseline."""
OTHER = {"eager": "compile", "compile": "eager"}
IN_PROGRESS = 4
"""Kernels judged at once per GPU: one is timed while others are compiled and checked."""

_BEST = """
SELECT problem_id, code, baseline_us FROM (SELECT *, row_number() OVER (
        PARTITION BY problem_id ORDER BY speedup_low DESC, turn_id) AS place
    FROM v_turns WHERE purpose = 'eval' AND stage = ? AND is_correct AND speedup IS NOT NULL)
WHERE place = 1
"""


async def with_other_baseline(
    run: RunContext, result: Evaluation, judge: JudgeTable, *, stage: int
) -> Evaluation:
    """The evaluation with `speed_other` in its detail, stored again; unchanged where nothing was
    timed. Raises as `open_pool`."""
    other = OTHER[judge.baseline]
    best = await anyio.to_thread.run_sync(lambda: _best(run, stage))
    known = await anyio.to_thread.run_sync(lambda: _known(run, stage, other))
    left = {name: row for name, row in best.items() if name not in known}
    if not best:
        return result
    if left:
        run.progress.enter(
            f"eval-{stage}: {other}", stage=stage, total=len(left), unit="kernels", busy=run.busy()
        )
        table = judge.model_copy(update={"baseline": other, "also": []})
        log_dir = run.log_dir / KIND
        log_dir.mkdir(exist_ok=True)
        with open_socket_dir() as sockets:
            async with open_pool(
                table, socket_dir=sockets, log_dir=log_dir, observer=run.observer,
                gpus=run.placement.judge,
            ) as pool:  # fmt: skip
                known |= await measure_ratios(run, pool, left, other=other, stage=stage)
    trajectories = await anyio.to_thread.run_sync(lambda: _sampled(run, stage))
    speed = against_other(trajectories, known)
    result = replace(result, detail={**result.detail, "speed_other": {"baseline": other, **speed}})
    await run.writer.put(result)
    return result


async def measure_ratios(
    run: RunContext,
    pool: Pool,
    kernels: Mapping[str, Mapping[str, Any]],
    *,
    other: str,
    stage: int,
) -> dict[str, float]:
    """The other baseline's time over the own one's, by problem. A problem whose kernel gets no time
    is left out."""
    problems = {problem.problem_id: problem for problem in run.problems}
    limiter = anyio.CapacityLimiter(IN_PROGRESS * max(1, len(run.placement.judge)))
    found: dict[str, float] = {}

    async def measure(problem: Problem, row: Mapping[str, Any]) -> None:
        async with limiter:
            verdict = await pool.judge(problem, row["code"])
        run.progress.done += 1
        name, timing = problem.problem_id, verdict.timing
        if timing is None:
            message = f"{name}: no time against {other}: {verdict.status} {verdict.reason}"
            await _record(run, message, {"stage": stage, "problem": name, "status": verdict.status})
            return
        found[name] = timing.baseline_us / row["baseline_us"]
        data = {
            "stage": stage, "problem": name, "baseline": other, "baseline_us": timing.baseline_us,
            "candidate_us": timing.candidate_us, "speedup": timing.speedup, "ratio": found[name],
        }  # fmt: skip
        await _record(run, f"{name}: {other} {timing.baseline_us:.1f} us", data)

    async with anyio.create_task_group() as tasks:
        for name, row in kernels.items():
            tasks.start_soon(measure, problems[name], row)
    return found


def against_other(
    rollouts: list[tuple[str, Trajectory]], ratios: Mapping[str, float]
) -> dict[str, Any]:
    """`measure_speed` with every speed-up times the ratio of its problem. Problems with a correct
    kernel and no ratio are left out and counted in `num_left_out`."""
    solved = {
        name
        for name, trajectory in rollouts
        if any(turn.verdict.is_correct for turn in trajectory.turns)
    }
    left_out = solved - ratios.keys()
    scaled = [
        (name, _scaled(trajectory, ratios.get(name, 1.0)))
        for name, trajectory in rollouts
        if name not in left_out
    ]
    return {"num_left_out": len(left_out), **measure_speed(scaled)}


def _scaled(trajectory: Trajectory, ratio: float) -> Trajectory:
    return replace(trajectory, turns=tuple(_scaled_turn(turn, ratio) for turn in trajectory.turns))


def _scaled_turn(turn: Turn, ratio: float) -> Turn:
    timing = turn.verdict.timing
    if timing is None:
        return turn
    timing = replace(timing, speedup=timing.speedup * ratio)
    return replace(turn, verdict=replace(turn.verdict, timing=timing))


async def _record(run: RunContext, message: str, data: dict[str, Any]) -> None:
    await run.writer.put(Event(at=time.time(), kind=KIND, message=message, data=data))


def _best(run: RunContext, stage: int) -> dict[str, dict[str, Any]]:
    with open_run(run.paths) as reader:
        return {row["problem_id"]: row for row in reader.rows(_BEST, (stage,))}


def _known(run: RunContext, stage: int, other: str) -> dict[str, float]:
    """Ratios that earlier attempts measured."""
    with open_run(run.paths) as reader:
        return {
            event.data["problem"]: event.data["ratio"]
            for event in events(reader, kind=KIND)
            if event.data["stage"] == stage and event.data.get("baseline") == other
        }


def _sampled(run: RunContext, stage: int) -> list[tuple[str, Trajectory]]:
    """The sampled rollouts of the stage."""
    with open_run(run.paths) as reader:
        groups = finished_groups(reader, stage=stage, step=run.weights.step)
    return [
        (group.problem_id, each)
        for group in groups
        if not group.is_greedy
        for each in group.trajectories
    ]
