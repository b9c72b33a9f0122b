"""The eval stage, and evaluations in between: play held-out problems with one set of weights,
measure, store."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from forge.records import Evaluation, Group, Problem, Purpose, Split
from forge.rollout.play import Place, Ports, Rules, play_group
from forge.statistics.evaluation import evaluate_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.config.schema import EvalStage, EvalTable, ServeTable
    from forge.runner.stages.run_context import RunContext

ROLLOUTS_PER_SLOT = 1.5
"""Played at once, per sequence slot of the engines: while some are judged, others have taken their
slots, and few wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """How one evaluation is played."""

    samples: int
    greedy: bool
    max_turns: int

    @classmethod
    def of(cls, table: EvalTable, stage: EvalStage | None = None) -> EvalSettings:
        """The stage's own keys where it has them, else those of `[eval]`."""
        own = (
            stage.model_dump(include={"samples", "greedy", "max_turns"}, exclude_none=True)
            if stage
            else {}
        )
        return cls(**{**table.model_dump(include={"samples", "greedy", "max_turns"}), **own})


async def evaluate(
    run: RunContext,
    problems: Sequence[Problem],
    settings: EvalSettings,
    *,
    label: str,
    stage: int,
    step: int,
    show: bool,
) -> Evaluation:
    """Play every problem `samples` times at temperature 1 and once greedily, and store the
    evaluation.

    Args:
        label: `eval-2`, or `grpo-3@5` for one in between.
        show: Drive the progress display (not while a trainer's stage owns it).

    """
    groups: list[Group] = []
    version = run.weights.version
    rules = [_rules(run, settings, temperature=1.0, size=settings.samples)]
    if settings.greedy:
        rules.append(_rules(run, settings, temperature=0.0, size=1))
    sizes = [rule.group_size for rule in rules]
    limiter = anyio.CapacityLimiter(groups_in_flight(run.experiment.serve, sizes))

    async def play(problem: Problem, rule: Rules, ports: Ports) -> None:
        async with limiter:
            place = Place(
                group_id=next(run.group_ids), purpose=Purpose.EVAL, stage=stage, step=step
            )
            groups.append(await play_group(problem, place=place, rules=rule, ports=ports))
            if show:
                run.progress.done += rule.group_size
                run.progress.numbers = _numbers(groups)

    if show:
        total = len(problems) * sum(sizes)
        run.progress.enter(label, stage=stage, total=total, unit="rollouts", busy=run.busy())
    async with run.pinned_ports() as ports:
        version = run.weights.version
        async with anyio.create_task_group() as tasks:
            for problem in problems:
                for rule in rules:
                    tasks.start_soon(play, problem, rule, ports)
    result = await anyio.to_thread.run_sync(
        lambda: evaluate_groups(
            groups,
            problems,
            stage=label,
            step=step,
            version=version,
            max_turns=settings.max_turns,
            at=time.time(),
        )
    )
    await run.writer.put(result)
    return result


def groups_in_flight(serve: ServeTable, sizes: Sequence[int]) -> int:
    """Groups played at once: as many as fill the slots of all replicas.

    Args:
        sizes: rollouts of each group of a problem.
    """
    slots = serve.slots * (len(serve.url) or serve.replicas)
    return max(2, math.ceil(ROLLOUTS_PER_SLOT * slots * len(sizes) / sum(sizes)))


async def run_eval_stage(run: RunContext, stage: EvalStage, index: int) -> Evaluation:
    """An `[[stage]]` of kind eval."""
    problems = run.of(Split.HELDOUT)
    settings = EvalSettings.of(run.experiment.eval, stage)
    chosen = spread(problems, stage.num_problems or len(problems))
    return await evaluate(
        run, chosen, settings, label=f"eval-{index}", stage=index, step=run.weights.step, show=True
    )


def spread(problems: Sequence[Problem], count: int) -> list[Problem]:
    """`count` problems spread evenly over the list, so that a part has every family that the
    whole has."""
    if count >= len(problems):
        return list(problems)
    return [problems[i * len(problems) // count] for i in range(count)]


def _rules(run: RunContext, settings: EvalSettings, *, temperature: float, size: int) -> Rules:
    rollout = run.experiment.rollout
    return Rules(
        group_size=size,
        max_turns=settings.max_turns,
        gamma=rollout.gamma,
        credit=rollout.credit,
        temperature=temperature,
        max_completion_tokens=rollout.max_completion_tokens,
        reward=run.experiment.reward,
        seed=run.experiment.seed,
    )


def _numbers(groups: Sequence[Group]) -> dict[str, float]:
    first = [t.turns[0] for g in groups for t in g.trajectories if t.turns and not g.is_greedy]
    correct = sum(turn.verdict.is_correct for turn in first)
    return {"pass@1": correct / max(len(first), 1)}
