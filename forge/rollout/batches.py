"""Batches of a training step, their samples, and the diagnosis of groups that give none.

    played ──▶ fresh ──▶ choose: earliest deadline first ──▶ batch ──▶ kept for replay while young

The groups of a batch are chosen when it is handed out: the oldest ones in the buffer, and none that
is too old. A group may be trained up to `replay` times: again only if the trainer would wait
otherwise, and within the same deadline.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from forge.records import End, Event, Finish, Group, Sample
from forge.rollout.admission import Admission
from forge.rollout.rewards.formulas import group_advantages

MAX_BATCHES_WITHOUT_SIGNAL = 3
"""Batches in a row. With more, the problems are too hard or too easy for this model, and further
steps do not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    step: int
    groups: tuple[Group, ...]
    """Groups played for this batch: those that are trained for the first time, and the flat ones
    that they replace. A group is in one batch only, however often it is trained."""
    samples: tuple[Sample, ...]
    state: Mapping[str, Any]
    """State of the producer after this batch, as JSON values; resume continues from it."""
    num_stale: int = 0
    """Groups dropped since the previous batch: too old when they ended."""
    num_replayed: int = 0
    """Groups that were trained before; `samples` contains theirs, too."""
    in_flight: int = 0

    @property
    def num_flat(self) -> int:
        return sum(group.is_flat for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    stage: int
    first_step: int
    """Steps count from 1."""
    last_step: int
    groups_per_step: int
    max_replacements: int
    """Flat groups that are replaced per step, beyond groups_per_step."""
    max_staleness: int
    scale: Literal["group", "none"]
    advantage: Literal["group", "turn"] = "group"
    leave_one_out: bool = False
    train_truncated: bool
    publish_timeout_s: float
    replay: int = 1
    in_flight: int | None = None
    judge_capacity: int = 1

    @property
    def budget(self) -> int:
        """Most groups that staleness allows to be open."""
        return self.groups_per_step * (1 + self.max_staleness)


def make_samples(
    groups: Sequence[Group], plan: BatchPlan, sample_ids: Iterator[int]
) -> list[Sample]:
    """One sample per trainable turn of each group with signal: without masked turns, and without
    truncated ones unless the plan trains them."""
    samples: list[Sample] = []
    for group in groups:
        if group.is_flat:
            continue
        advantages = group_advantages(
            [t.returns for t in group.trajectories], scale=plan.scale, advantage=plan.advantage,
            leave_one_out=plan.leave_one_out,
        )  # fmt: skip
        for trajectory, row in zip(group.trajectories, advantages, strict=True):
            for turn, advantage in zip(trajectory.turns, row, strict=True):
                truncated = turn.completion.finish is not Finish.STOP
                if advantage is None or (truncated and not plan.train_truncated):
                    continue
                sample = Sample(
                    sample_id=next(sample_ids), group_id=turn.group_id, rollout=turn.rollout,
                    turn=turn.turn, prompt_ids=turn.prompt_ids, advantage=advantage,
                    completion_ids=turn.completion.token_ids, logprobs=turn.completion.logprobs,
                    policy_version=turn.completion.min_version,
                )  # fmt: skip
                samples.append(sample)
    return samples


def oldest_step(group: Group, step_of: Callable[[int], int]) -> int | None:
    """Step of the oldest weights that sampled any of its tokens; None for a group without turns.
    `step_of` maps a policy version to the training step that made it."""
    versions = {t.completion.min_version for each in group.trajectories for t in each.turns}
    return min((step_of(v) for v in versions), default=None)


def count_from(last: int) -> Iterator[int]:
    return itertools.count(last + 1)


def no_signal(step: int, groups: Sequence[Group]) -> Event:
    message = f"step {step}: none of {len(groups)} groups gives a signal; {_why_flat(groups)}"
    return Event(at=time.time(), kind="no_signal", message=message, data={"step": step})


def no_signal_error(step: int, groups: Sequence[Group]) -> str:
    num, why = MAX_BATCHES_WITHOUT_SIGNAL, _why_flat(groups)
    return f"rollout: step {step}: {num} batches in a row without a signal: {why}"


def _why_flat(groups: Sequence[Group]) -> str:
    """Cause of the missing signal, and advice."""
    rollouts = [trajectory for group in groups for trajectory in group.trajectories]
    turns = [turn for trajectory in rollouts for turn in trajectory.turns]
    room = "serve.context_tokens: raise it, or lower rollout.max_completion_tokens"
    if not turns:
        return f"no prompt fits {room}"
    for end, words in (
        (End.CONTEXT_FULL, f"{{}} rollouts do not fit {room}"),
        (End.INFRA, "the judge failed on {} rollouts: its log says why"),
        (End.UNJUDGEABLE, ("the problems of {} rollouts cannot be judged: "
         '"forge problems check" says why')),
    ):  # fmt: skip
        num = sum(trajectory.end is end for trajectory in rollouts)
        if 2 * num > len(rollouts):
            return words.format(f"{num} of {len(rollouts)}")
    correct = sum(turn.verdict.is_correct for turn in turns)
    advice = (
        "nearly all are correct: take harder problems"
        if correct * 2 > len(turns)
        else "nearly none is correct: more SFT, easier problems, or a larger group_size"
    )
    return f"each group's returns are equal ({correct} of {len(turns)} turns correct); {advice}"


@dataclass(slots=True, kw_only=True, eq=False)
class Waiting:
    """A finished group with its deadline. Flat groups wait, too, once the budget for replacing them
    is spent: they fill a place in a batch without samples."""

    group: Group
    deadline: int
    num_uses: int = 0
    samples: tuple[Sample, ...] = ()
    """Made when the group is first handed out."""


@dataclass(slots=True, kw_only=True)
class Buffer:
    """Waiting groups, in the order in which they ended."""

    replay: int = 1
    fresh: list[Waiting] = field(default_factory=list[Waiting])
    used: list[Waiting] = field(default_factory=list[Waiting])

    def choose(self, admission: Admission, *, is_awaited: bool) -> list[Waiting] | None:
        """The groups of the open step's batch, or None if it cannot be made yet. They stay in the
        buffer until `take`. `is_awaited`: The trainer is idle: used groups may fill the batch, if
        so much of it is fresh that groups are trained at most `replay` times on average."""
        size = admission.groups_per_step
        chosen = sorted(self.fresh, key=lambda waiting: waiting.deadline)[:size]
        missing = size - len(chosen)
        if missing:
            usable = [each for each in self.used if each.deadline >= admission.step]
            # the least used first, then the youngest
            usable.sort(key=lambda waiting: (waiting.num_uses, -waiting.deadline))
            again = usable[:missing] if is_awaited else []
            if len(chosen) * self.replay < size or len(again) < missing:
                return None
            chosen += again
        fresh = [waiting.deadline for waiting in chosen if not waiting.num_uses]
        return chosen if admission.may_close(fresh) else None

    def take(self, chosen: Sequence[Waiting], *, step: int) -> None:
        for waiting in chosen:
            waiting.num_uses += 1
        self.used += [each for each in chosen if each in self.fresh]
        self.fresh = [each for each in self.fresh if each not in chosen]
        young = [each for each in self.used if each.deadline > step]
        self.used = [each for each in young if each.num_uses < self.replay and each.samples]
