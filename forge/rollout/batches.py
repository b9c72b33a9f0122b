"""Admission of groups, batches of a training step, their samples, and the diagnosis of groups that
give none.

    played ──▶ fresh ──▶ choose: earliest deadline first ──▶ batch ──▶ kept for replay while young

The groups of a batch are chosen when it is handed out: the oldest ones in the buffer, and none that
is too old. A group may be trained up to `replay` times: again only if the trainer would wait
otherwise, and within the same deadline.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio

from forge.errors import Stalled
from forge.records import End, EngineLoad, Event, Finish, Group, Sample
from forge.rollout.rewards.formulas import group_advantages


@dataclass(slots=True, kw_only=True)
class Admission:
    """Open groups by deadline: admitted, and in no batch yet. No clock, no task.

    A group gets a deadline when it begins, the last step that may train it: p + 1 + max_staleness
    while the weights of step p are served. For every step h from the open one on:

        groups due by h  ≤  (h - open step + 1) · groups_per_step

    It is Hall's condition for an earliest-deadline-first schedule: no group is ever thrown away,
    whatever order they end in. `may_close` keeps it true when a batch is closed.
    """

    step: int
    """The open step, whose batch is being gathered."""
    last_step: int
    groups_per_step: int
    max_staleness: int
    _due: Counter[int] = field(default_factory=Counter[int])

    @property
    def num_open(self) -> int:
        return self._due.total()

    @property
    def nominal_step(self) -> int:
        """The step that would train the next group if groups ended in order."""
        return self.step + self.num_open // self.groups_per_step

    def deadline(self, served_step: int) -> int:
        """The last step that may train samples from the weights of `served_step`."""
        return min(served_step + 1 + self.max_staleness, self.last_step)

    def fits(self, deadline: int) -> bool:
        """True if (*) holds with one more group of this deadline."""
        if deadline < self.step:
            return False
        steps = {deadline, *(step for step in self._due if step > deadline)}
        return all(
            sum(count for due, count in self._due.items() if due <= step)
            < (step - self.step + 1) * self.groups_per_step
            for step in steps
        )

    def admit(self, deadline: int) -> None:
        """Add a group that begins, or that ended and waits."""
        assert self.fits(deadline)
        self._due[deadline] += 1

    def leave(self, deadline: int) -> None:
        """Remove a group: it is in a batch, dropped, or flat and replaced."""
        assert self._due[deadline] > 0
        self._due = self._due - Counter((deadline,))

    def may_close(self, taken: Iterable[int]) -> bool:
        """True if (*) holds for the steps after the open one, with groups of the deadlines `taken`
        in its batch."""
        left = self._due - Counter(taken)
        return all(
            sum(n for due, n in left.items() if due <= step)
            <= (step - self.step) * self.groups_per_step
            for step in {self.step, *left}
        )

    def close(self, taken: Iterable[int]) -> None:
        for deadline in taken:
            self.leave(deadline)
        self.step += 1


class PublishedSteps:
    """The training step whose weights every replica serves. One producer waits on it, one
    publisher advances it."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self._changed = anyio.Event()

    def advance(self, step: int) -> None:
        """Record a publish. A restarted trainer publishes its checkpoint, an older step: then new
        samples are that old, and the step moves back."""
        self.step = step
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self) -> None:
        await self._changed.wait()

    async def wait_for(self, step: int, *, timeout_s: float) -> None:
        """Wait until `step` is published. Raises Stalled after `timeout_s` without a publish."""
        while self.step < step:
            with anyio.move_on_after(timeout_s) as scope:
                await self.changed()
            if scope.cancelled_caught:
                raise Stalled(
                    f"trainer: no weights published for {timeout_s:.0f} s; "
                    f"the next batch waits for step {step}, the last published is {self.step}"
                )


KV_LOW = 0.6
KV_HIGH = 0.9
"""Shares of the KV cache in use. Above the higher one, a few growing sequences fill it; between the
two, running sequences have room to grow."""
MORE = 1.25
FEWER = 0.8
CHANGE_EVERY_S = 5.0
"""Time until a change has an effect: the new groups reach the engine, and their first answers the
judges."""
QUEUE_PER_JUDGE = 2
"""Waiting candidates per candidate being judged. With more, judges are the bottleneck, and more
groups would only get older."""


class Concurrency:
    """A limit of open groups between 1 and `ceiling`, from `start` on: as many as keep engine and
    judges busy, found by trial. The factor up is smaller than the factor down, so the limit settles
    below the point where sequences are preempted and evaluated again."""

    def __init__(self, start: int, ceiling: int) -> None:
        self.limit, self._ceiling = start, ceiling
        self._changed_at: float | None = None

    def update(
        self, load: EngineLoad | None, *, judge_queue: int, judge_capacity: int, now: float
    ) -> int:
        """The new limit; without a load it stays. `judge_queue`: waiting candidates;
        `judge_capacity`: candidates judged at once; `now`: monotonic seconds."""
        if self._changed_at is None:
            self._changed_at = now
        if load is None or now - self._changed_at < CHANGE_EVERY_S:
            return self.limit
        if load.kv_use > KV_HIGH and load.waiting > 0 and load.running < load.slots:
            self._change(math.floor(self.limit * FEWER), now)
        elif (load.kv_use < KV_LOW and load.waiting == 0) and (
            judge_queue <= QUEUE_PER_JUDGE * judge_capacity
        ):
            self._change(math.ceil(self.limit * MORE), now)
        return self.limit

    def _change(self, limit: int, now: float) -> None:
        limit = min(max(limit, 1), self._ceiling)
        if limit != self.limit:
            self.limit, self._changed_at = limit, now


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
