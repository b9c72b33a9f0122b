"""Batches: what a training step is made of, how its samples come out of groups, and what is said of
groups that give none.

`producer.py` gathers them; `runner.grpo` hands them to the trainer.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from forge.records import End, Event, Finish, Group, Sample
from forge.rewards import group_advantages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MAX_BATCHES_WITHOUT_SIGNAL = 3
"""In a row. More and the problems are too hard or too easy for this model: more steps would not
help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one training step is made of."""

    step: int
    groups: tuple[Group, ...]
    """Played for it: those that are trained for the first time, and the flat ones that they took
    the place of. A group is in one batch only, however often it is trained."""
    samples: tuple[Sample, ...]
    state: Mapping[str, Any]
    """Of the producer once this batch was made, as JSON; resume continues from here."""
    num_stale: int = 0
    """Groups dropped since the batch before: older than allowed once they ended."""
    num_replayed: int = 0
    """Groups that were trained before; `samples` has theirs too."""
    in_flight: int = 0
    """Groups being played when it was made."""

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
    replay: int = 1
    """Times a group may be trained."""
    in_flight: int | None = None
    """Groups played at once; None: as many as engine and judges can use."""
    most_in_flight: int | None = None
    """What that may grow to; None: as far as staleness allows."""
    judge_capacity: int = 1
    """Candidates judged at once."""

    @property
    def budget(self) -> int:
        """Groups that staleness allows on their way at once."""
        return self.groups_per_step * (1 + self.max_staleness)


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


def oldest_step(group: Group, step_of: Callable[[int], int]) -> int | None:
    """Of the weights that any of its tokens was sampled from; None for a group without turns.

    Args:
        step_of: the training step whose weights a policy version is.
    """
    versions = {t.completion.min_version for each in group.trajectories for t in each.turns}
    return min((step_of(v) for v in versions), default=None)


def count_from(last: int) -> Iterator[int]:
    """Ids after `last`."""
    return itertools.count(last + 1)


def no_signal(step: int, groups: Sequence[Group]) -> Event:
    message = f"step {step}: none of {len(groups)} groups gives a signal; {_why_flat(groups)}"
    return Event(at=time.time(), kind="no_signal", message=message, data={"step": step})


def no_signal_words(step: int, groups: Sequence[Group]) -> str:
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
