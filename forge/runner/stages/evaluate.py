"""Evaluations: play held-out problems with one set of weights, measure, store.

Called by `work.py` for an eval stage and by `midway.py` during a grpo stage. An eval stage that was
interrupted keeps its finished groups and plays the others.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from forge.records import Evaluation, Group, Problem, Purpose, Split
from forge.rollout.play import GroupPlace, Rules, play_group
from forge.rollout.seeds import problem_place
from forge.runner.live.progress import group_numbers
from forge.runner.stages.finished_groups import keep_finished
from forge.runner.stages.trained_problems import count_trained
from forge.views.statistics import evaluate_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.config.schema import EvalStage, EvalTable, ServeTable
    from forge.rollout.ports import Ports
    from forge.runner.stages.run_context import RunContext

ROLLOUTS_PER_SLOT = 1.5
"""Rollouts played at once per sequence slot of the engines: while some are judged, others use their
slots, and few wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """Settings of one evaluation."""

    samples: int
    """Rollouts of each problem at temperature 1."""
    greedy: bool
    """True for one more rollout at temperature 0."""
    max_turns: int

    @classmethod
    def of(cls, table: EvalTable, stage: EvalStage) -> EvalSettings:
        """The stage's keys where it has them, otherwise those of `[eval]`."""
        keys = {"samples", "greedy", "max_turns"}
        own = stage.model_dump(include=keys, exclude_none=True)
        return cls(**{**table.model_dump(include=keys), **own})


async def evaluate(
    run: RunContext,
    problems: Sequence[Problem],
    settings: EvalSettings,
    *,
    label: str,
    stage: int,
    step: int,
    show: bool,
    kept: Sequence[Group] = (),
) -> Evaluation:
    """Play every problem `samples` times at temperature 1 and once greedily, and store the
    evaluation.

    Args:
        label: `eval-2`, or `grpo-3@5` for one between the steps of a grpo stage.
        show: Drive the progress display, which a training stage uses otherwise.
        kept: Groups of an earlier attempt, which are not played again.
    """
    playing = Playing.of(run, settings, stage=stage, step=step, show=show, kept=kept)
    if show:
        playing.show_begin(label, len(problems))
    version = await playing.play_all(problems)
    measure = partial(
        evaluate_groups,
        playing.groups,
        problems,
        stage=label,
        step=step,
        version=version,
        max_turns=settings.max_turns,
    )
    result = await anyio.to_thread.run_sync(lambda: measure(at=time.time()))
    result = await _with_detail(run, result, problems, stage=stage)
    await run.writer.put(result)
    return result


@dataclass(slots=True, kw_only=True)
class Playing:
    """Groups of one evaluation while they are played."""

    run: RunContext
    rules: Sequence[Rules]
    """One for samples, and one for greedy rollouts if there are any."""
    stage: int
    step: int
    show: bool
    groups: list[Group]
    """Finished groups, those of an earlier attempt included."""
    limiter: anyio.CapacityLimiter

    @classmethod
    def of(
        cls,
        run: RunContext,
        settings: EvalSettings,
        *,
        stage: int,
        step: int,
        show: bool,
        kept: Sequence[Group],
    ) -> Playing:
        """Nothing played but the groups of an earlier attempt."""
        rules = _rules_of(run, settings)
        sizes = [rule.group_size for rule in rules]
        return cls(
            run=run,
            rules=rules,
            stage=stage,
            step=step,
            show=show,
            groups=[*kept],
            limiter=anyio.CapacityLimiter(groups_in_flight(run.experiment.serve, sizes)),
        )

    def show_begin(self, label: str, num_problems: int) -> None:
        """Sets up the progress display."""
        progress = self.run.progress
        total = num_problems * sum(rule.group_size for rule in self.rules)
        busy = self.run.busy()
        progress.enter(label, stage=self.stage, total=total, unit="rollouts", busy=busy)
        progress.done += sum(len(group.trajectories) for group in self.groups)

    async def play_all(self, problems: Sequence[Problem]) -> int:
        """Plays what an earlier attempt has not. Returns the policy version that played."""
        done = {(group.problem_id, group.is_greedy) for group in self.groups}
        async with self.run.pinned_ports() as ports:
            version = self.run.weights.version
            async with anyio.create_task_group() as tasks:
                for problem in problems:
                    for rule in self.rules:
                        if (problem.problem_id, rule.temperature == 0.0) not in done:
                            tasks.start_soon(self._play, problem, rule, ports)
        return version

    async def _play(self, problem: Problem, rule: Rules, ports: Ports) -> None:
        async with self.limiter:
            place = GroupPlace(
                group_id=next(self.run.group_ids),
                purpose=Purpose.EVAL,
                stage=self.stage,
                step=self.step,
                seed_place=problem_place(problem.problem_id),
            )
            self.groups.append(await play_group(problem, place=place, rules=rule, ports=ports))
            if self.show:
                self._show_group(rule)

    def _show_group(self, rule: Rules) -> None:
        progress = self.run.progress
        progress.done += rule.group_size
        sampled = [group for group in self.groups if not group.is_greedy]
        progress.numbers = {"pass@1": group_numbers(sampled)["pass_rate"]}


def _rules_of(run: RunContext, settings: EvalSettings) -> list[Rules]:
    seed = run.experiment.eval.seed
    rules_of = partial(run.rules, max_turns=settings.max_turns, seed=seed)
    rules = [rules_of(group_size=settings.samples, temperature=1.0)]
    if settings.greedy:
        rules.append(rules_of(group_size=1, temperature=0.0))
    return rules


async def _with_detail(
    run: RunContext, result: Evaluation, problems: Sequence[Problem], *, stage: int
) -> Evaluation:
    """The result with the number of trained problems and the baseline's name."""
    num_trained = await anyio.to_thread.run_sync(partial(count_trained, run, problems, stage=stage))
    detail = {**result.detail, "num_trained_problems": num_trained}
    detail["baseline"] = run.experiment.judge.baseline
    return replace(result, detail=detail)


def groups_in_flight(serve: ServeTable, sizes: Sequence[int]) -> int:
    """Number of groups played at once, so that they fill the slots of all replicas. `sizes`:
    rollouts in each group of a problem."""
    slots = serve.slots * serve.num_servers
    return max(2, math.ceil(ROLLOUTS_PER_SLOT * slots * len(sizes) / sum(sizes)))


async def run_eval_stage(run: RunContext, stage: EvalStage, index: int) -> Evaluation:
    """Run a `[[stage]]` of kind eval."""
    heldout = run.problems_of(Split.HELDOUT)
    problems = spread(heldout, stage.num_problems or len(heldout))
    settings = EvalSettings.of(run.experiment.eval, stage)
    kept = await keep_finished(run, problems, settings, stage=index)
    return await evaluate(
        run,
        problems,
        settings,
        label=f"eval-{index}",
        stage=index,
        step=run.weights.step,
        show=True,
        kept=kept,
    )


def spread(problems: Sequence[Problem], count: int) -> list[Problem]:
    """`count` problems at even distances in the list, so that a part has every family of the
    whole."""
    if count >= len(problems):
        return list(problems)
    return [problems[i * len(problems) // count] for i in range(count)]
