"""Batches: which groups make a training step, and the samples they become.

Called by `runner.grpo`. Flat groups carry no signal: they are stored, counted and replaced within a
budget; three steps without any signal end the run with advice.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import anyio

from forge.errors import Stalled
from forge.records import End, Event, Finish, Group, Purpose, Sample
from forge.rewards import group_advantages
from forge.rollout.play import Place, Ports, Rules, play_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from anyio.streams.memory import MemoryObjectSendStream

    from forge.rollout.pacing import PublishedSteps
    from forge.rollout.sampler import UniformSampler

MAX_BATCHES_WITHOUT_SIGNAL = 3
"""In a row. More and the problems are too hard or too easy for this model: more steps would not
help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one training step is made of."""

    step: int
    groups: tuple[Group, ...]
    """All groups played for it, flat ones included."""
    samples: tuple[Sample, ...]
    sampler_state: dict[str, int]
    """Of the sampler once these groups were drawn; resume continues from here."""

    @property
    def num_flat(self) -> int:
        return sum(group.is_flat for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How batches are made."""

    stage: int
    first_step: int
    """Steps count from 1."""
    last_step: int
    groups_per_step: int
    max_replacements: int
    """Groups a step, beyond groups_per_step."""
    max_staleness: int
    scale: Literal["group", "none"]
    train_truncated: bool
    publish_timeout_s: float


async def produce_batches(
    plan: BatchPlan,
    *,
    sampler: UniformSampler,
    rules: Rules,
    ports: Ports,
    published: PublishedSteps,
    group_ids: Iterator[int],
    sample_ids: Iterator[int],
    out: MemoryObjectSendStream[Batch],
    on_group: Callable[[Group], None] = lambda group: None,
    played: Sequence[Group] = (),
) -> None:
    """Play batch after batch, at most `max_staleness` steps ahead of what was published, and send
    each to `out`.

    Args:
        played: groups of the first step that an earlier attempt finished; each is taken where its
            problem is drawn again.

    Raises Stalled after three batches in a row without signal, or when the trainer stops
    publishing.
    """
    without_signal, ready = 0, list(played)
    async with out:
        for step in range(plan.first_step, plan.last_step + 1):
            groups: list[Group] = []
            samples: list[Sample] = []
            while not samples:
                await published.wait_for(
                    step - 1 - plan.max_staleness, timeout_s=plan.publish_timeout_s
                )
                new = await _play_step(
                    step, plan, sampler, rules, ports, group_ids, on_group, ready
                )
                groups += new
                samples = make_samples(new, plan, sample_ids)
                without_signal = 0 if samples else without_signal + 1
                if not samples:
                    await ports.sink.put(_no_signal(step, new))
                if without_signal >= MAX_BATCHES_WITHOUT_SIGNAL:
                    raise Stalled(_no_signal_words(step, groups))
            ready.clear()
            await ports.sink.put(*samples)
            await out.send(
                Batch(
                    step=step,
                    groups=tuple(groups),
                    samples=tuple(samples),
                    sampler_state=sampler.state(),
                )
            )


async def _play_step(
    step: int,
    plan: BatchPlan,
    sampler: UniformSampler,
    rules: Rules,
    ports: Ports,
    group_ids: Iterator[int],
    on_group: Callable[[Group], None],
    ready: list[Group],
) -> list[Group]:
    """Play `groups_per_step` groups at once; each flat one admits another while the budget
    lasts. What is `ready` is taken out of there instead."""
    groups: list[Group] = []
    budget = plan.max_replacements

    async def play() -> None:
        nonlocal budget
        while True:
            problem = sampler.next()
            group = next((g for g in ready if g.problem_id == problem.problem_id), None)
            if group is not None:
                ready.remove(group)
            else:
                place = Place(
                    group_id=next(group_ids), purpose=Purpose.TRAIN, stage=plan.stage, step=step
                )
                group = await play_group(problem, place=place, rules=rules, ports=ports)
            groups.append(group)
            on_group(group)
            if not group.is_flat or budget <= 0:
                return
            budget -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(plan.groups_per_step):
            tasks.start_soon(play)
    return groups


def make_samples(
    groups: Sequence[Group], plan: BatchPlan, sample_ids: Iterator[int]
) -> list[Sample]:
    """One sample a trainable turn of each group with signal: masked turns and, where asked,
    truncated ones are left out."""
    samples: list[Sample] = []
    for group in groups:
        if group.is_flat:
            continue
        advantages = group_advantages([t.returns for t in group.trajectories], scale=plan.scale)
        for trajectory, row in zip(group.trajectories, advantages, strict=True):
            for turn, advantage in zip(trajectory.turns, row, strict=True):
                truncated = turn.completion.finish is not Finish.STOP
                if advantage is None or (truncated and not plan.train_truncated):
                    continue
                samples.append(
                    Sample(
                        sample_id=next(sample_ids),
                        group_id=turn.group_id,
                        rollout=turn.rollout,
                        turn=turn.turn,
                        prompt_ids=turn.prompt_ids,
                        completion_ids=turn.completion.token_ids,
                        logprobs=turn.completion.logprobs,
                        advantage=advantage,
                        policy_version=turn.completion.min_version,
                    )
                )
    return samples


def count_from(last: int) -> Iterator[int]:
    """Ids after `last`."""
    return itertools.count(last + 1)


def _no_signal(step: int, groups: Sequence[Group]) -> Event:
    message = f"step {step}: none of {len(groups)} groups gives a signal; {_why_flat(groups)}"
    return Event(at=time.time(), kind="no_signal", message=message, data={"step": step})


def _no_signal_words(step: int, groups: Sequence[Group]) -> str:
    return (
        f"rollout: step {step}: {MAX_BATCHES_WITHOUT_SIGNAL} batches in a row without a signal: "
        f"{_why_flat(groups)}"
    )


def _why_flat(groups: Sequence[Group]) -> str:
    """What masked most rollouts, or how equal the others were; and what helps."""
    rollouts = [trajectory for group in groups for trajectory in group.trajectories]
    turns = [turn for trajectory in rollouts for turn in trajectory.turns]
    num_full = sum(trajectory.end is End.CONTEXT_FULL for trajectory in rollouts)
    num_failed = sum(trajectory.end is End.INFRA for trajectory in rollouts)
    room = "serve.context_tokens: raise it, or lower rollout.max_completion_tokens"
    if not turns:
        return f"no prompt fits {room}"
    if 2 * num_full > len(rollouts):
        return f"{num_full} of {len(rollouts)} rollouts do not fit {room}"
    if 2 * num_failed > len(rollouts):
        return f"the judge failed on {num_failed} of {len(rollouts)} rollouts: its log says why"
    correct = sum(turn.verdict.is_correct for turn in turns)
    advice = (
        "nearly all are correct: take harder problems"
        if correct * 2 > len(turns)
        else "nearly none is correct: more SFT, easier problems, or a larger group_size"
    )
    return f"each group's returns are equal ({correct} of {len(turns)} turns correct); {advice}"
