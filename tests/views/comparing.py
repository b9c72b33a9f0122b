"""Runs to compare: trained by GRPO or SFT, evaluated with a given number of correct samples out of
four.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from forge.records import Evaluation, Event, Group, Metrics, Purpose, Status, Trajectory
from forge.store.reader import open_run
from forge.views.compare import By, Comparison, compare
from tests.store.storefactory import attempt, evaluation, group, problem, write_run

NUM_PROBLEMS = 6
CORRECT, WRONG = Status.CORRECT, Status.WRONG


def eval_groups(
    first_id: int, solved: dict[int, int], *, stage: int, step: int, **changes: Any
) -> list[Group]:
    """Four samples of each problem, of which a given number are correct."""
    return [
        judged_on(
            group(
                first_id + number,
                [[CORRECT]] * num + [[WRONG]] * (4 - num),
                problem_id=f"softmax-{number:04d}",
                purpose=Purpose.EVAL,
                stage=stage,
                step=step,
                speed=changes.get("speed"),
            ),
            changes.get("device", "cpu"),
        )
        for number, num in solved.items()
    ]


def judged_on(played: Group, device: str) -> Group:
    def moved(trajectory: Trajectory) -> Trajectory:
        turns = [replace(t, verdict=replace(t.verdict, device=device)) for t in trajectory.turns]
        return replace(trajectory, turns=tuple(turns))

    return replace(played, trajectories=tuple(moved(each) for each in played.trajectories))


def made(
    solved: dict[int, int], *, num_steps: int = 4, seconds: float = 10.0, rate: float = 0.5,
    midway: dict[int, int] | None = None, **changes: Any,
) -> list:  # fmt: skip
    """A run of GRPO in stage 1, whose steps take `seconds`, evaluated in stage 2."""
    rng = random.Random(0)
    levels = [problem(n, level=1 + n % 2) for n in range(NUM_PROBLEMS)]
    out: list = [attempt(), *levels]
    out.append(Event(at=1.0, kind="stage_start", message="grpo", data={"stage": 1}))
    for step in range(1, num_steps + 1):
        rows = [[CORRECT if rng.random() < rate else WRONG] for _ in range(8)]
        out.append(group(step, rows, step=step))
        values = {"train/loss/mean": 1.0 / step, "step/wall/seconds": seconds}
        out.append(Metrics(stage=1, step=step, at=10.0 * step, values=values))
    if midway is not None:
        out += eval_groups(200, midway, stage=1, step=2)
        out.append(measured("grpo-1@2", stage_index=1, step=2, at=25.0))
    out += eval_groups(100, solved, stage=2, step=num_steps, **changes)
    return [*out, measured("eval-2", stage_index=2, step=num_steps, at=100.0)]


def measured(stage: str, *, stage_index: int, step: int, at: float) -> Evaluation:
    assert f"-{stage_index}" in stage
    return evaluation(stage, step=step, at=at)


def compared(tmp_path: Path, a: list, b: list, *, by: By = By.STEP) -> Comparison:
    for name, records in (("a-1", a), ("b-1", b)):
        anyio.run(write_run, tmp_path / name, records)
    with open_run(tmp_path / "a-1") as left, open_run(tmp_path / "b-1") as right:
        return compare(left, right, by=by)


def sft(solved: dict[int, int], *, num_steps: int) -> list:
    """A run of SFT that logs every ten steps, evaluated at its end."""
    out: list = [attempt(), *(problem(n) for n in range(NUM_PROBLEMS))]
    for step in range(10, num_steps + 1, 10):
        values = {"train/loss/mean": 10.0 / step}
        if step == num_steps:
            values["step/wall/seconds"] = 0.5 * num_steps
        out.append(Metrics(stage=1, step=step, at=0.5 * step, values=values))
    out += eval_groups(100, solved, stage=2, step=num_steps)
    return [*out, measured("eval-2", stage_index=2, step=num_steps, at=100.0)]
