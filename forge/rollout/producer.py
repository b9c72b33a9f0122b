"""The producer: keeps groups in play and makes batches of those that end.

    sampler ─▶ admit ─▶ play_group (many at once) ─▶ buffer ─▶ batch ─▶ out ─▶ trainer
                 ▲ room within max_staleness, and in engine and judges           │
                 └──────────────── PublishedSteps.advance ◀──────────────────────┘

Called by the GRPO stage of the runner. It never waits for a whole batch: a group that ends makes
room for the next, and faster groups overtake a slow one until its deadline. Each time it wakes, it
admits as many groups as fit and closes the open batch if it can; then it waits for a group to end,
for a publish, or for the next check of the load. Flat groups carry no signal: they are stored,
counted and replaced within a budget; three batches in a row without any signal end the run with
advice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

from forge.errors import Stalled
from forge.records import Group, Problem, Purpose, Verdict
from forge.rollout import batches
from forge.rollout.admission import Admission, Concurrency, PublishedSteps
from forge.rollout.past import Past, to_state
from forge.rollout.play import GroupPlace, Rules, play_group
from forge.rollout.ports import Ports
from forge.rollout.sampling import Sampler

CHECK_EVERY_S = 1.0
"""Interval between checks of the load, if the number of groups follows it."""


async def produce_batches(
    plan: batches.BatchPlan, *, sampler: Sampler, rules: Rules, ports: Ports,
    published: PublishedSteps, group_ids: Iterator[int], sample_ids: Iterator[int],
    out: MemoryObjectSendStream[batches.Batch], step_of: Callable[[int], int],
    past: Past | None = None,
) -> None:  # fmt: skip
    """Play groups and send batch after batch to `out`; no sample is more than `max_staleness` steps
    old when it is trained. `step_of` maps a policy version to the training step that made it;
    `past`: groups and problems of an earlier attempt, with the sampler in the state of its end.
    Raises Stalled after three batches in a row without signal, or if the trainer stops publishing.
    """
    producer = _Producer(plan, sampler, rules, ports, published, step_of)
    producer.group_ids, producer.sample_ids = group_ids, sample_ids
    producer.past = past or Past()
    async with out, anyio.create_task_group() as tasks:
        tasks.start_soon(producer.watch_publishes)
        if producer.concurrency is not None:
            tasks.start_soon(producer.watch_load)
        await producer.run(tasks, out)
        tasks.cancel_scope.cancel()


class _Producer:
    group_ids: Iterator[int]
    sample_ids: Iterator[int]
    past: Past

    def __init__(
        self, plan: batches.BatchPlan, sampler: Sampler, rules: Rules, ports: Ports,
        published: PublishedSteps, step_of: Callable[[int], int],
    ) -> None:  # fmt: skip
        self.plan, self.sampler, self.rules = plan, sampler, rules
        self.ports = replace(ports, judge=self._judge)
        self.published, self.step_of = published, step_of
        self.admission = Admission(
            step=plan.first_step, last_step=plan.last_step, groups_per_step=plan.groups_per_step,
            max_staleness=plan.max_staleness,
        )  # fmt: skip
        self.buffer = batches.Buffer(replay=plan.replay)
        self.concurrency = _concurrency(plan)
        self._judge_port = ports.judge
        self._judging = 0
        self._playing: dict[int, Problem] = {}
        """Problems being played, by play number, in the order in which they began."""
        self._next_play = 0
        self._replaced: list[Group] = []
        """Flat groups of the open batch that are replaced."""
        self._gathered: list[Group] = []
        """Groups played for the open step in batches without signal."""
        self._without_signal = 0
        self._num_stale = 0
        self._woken = anyio.Event()

    async def run(self, tasks: TaskGroup, out: MemoryObjectSendStream[batches.Batch]) -> None:
        for group in self.past.waiting:
            self._put(group)
        while self.admission.step <= self.plan.last_step:
            self._admit(tasks)
            chosen = self.buffer.choose(self.admission, is_awaited=self._is_awaited)
            if chosen is not None:
                await self._close(chosen, out)
            else:
                await self._wait()

    async def watch_publishes(self) -> None:
        while True:
            await self.published.changed()
            self._wake()

    async def watch_load(self) -> None:
        while True:
            await anyio.sleep(CHECK_EVERY_S)
            self._wake()

    # -- admission -------------------------------------------------------------------------------

    @property
    def _is_awaited(self) -> bool:
        """True if the trainer has published a step for every batch so far."""
        return self.published.step >= self.admission.step - 1

    def _admit(self, tasks: TaskGroup) -> None:
        limit = self._limit()
        while len(self._playing) < limit:
            deadline = self.admission.deadline(self.published.step)
            if not self.admission.fits(deadline):
                return
            problem = self.past.problems.popleft() if self.past.problems else self.sampler.next()
            ready = self.past.played(problem)
            if ready is not None:
                self.sampler.observe(ready)
                self._put(ready)
                continue
            step = self.admission.nominal_step
            self.admission.admit(deadline)
            self._playing[self._next_play] = problem
            tasks.start_soon(self._play, self._next_play, problem, deadline, step)
            self._next_play += 1

    def _limit(self) -> int:
        if self.concurrency is None:
            return self.plan.in_flight or self.plan.groups_per_step
        return self.concurrency.update(
            self.ports.load(),
            judge_queue=max(self._judging - self.plan.judge_capacity, 0),
            judge_capacity=self.plan.judge_capacity,
            now=anyio.current_time(),
        )

    async def _play(self, play: int, problem: Problem, deadline: int, step: int) -> None:
        place = GroupPlace(
            group_id=next(self.group_ids), purpose=Purpose.TRAIN, stage=self.plan.stage, step=step
        )
        group = await play_group(problem, place=place, rules=self.rules, ports=self.ports)
        del self._playing[play]
        self.admission.leave(deadline)
        self.sampler.observe(group)
        self._put(group)
        self._wake()

    async def _judge(self, problem: Problem, code: str) -> Verdict:
        self._judging += 1
        try:
            return await self._judge_port(problem, code)
        finally:
            self._judging -= 1

    def _put(self, group: Group) -> None:
        """Put a group into the buffer, unless it is flat and replaced, or too old: a restarted
        trainer serves older weights than were published before."""
        if group.is_flat and len(self._replaced) < self.plan.max_replacements:
            self._replaced.append(group)
            return
        oldest = batches.oldest_step(group, self.step_of)
        deadline = self.admission.deadline(self.published.step if oldest is None else oldest)
        if not self.admission.fits(deadline):
            self._num_stale += 1
            return
        self.admission.admit(deadline)
        self.buffer.fresh.append(batches.Waiting(group=group, deadline=deadline))

    # -- batches ---------------------------------------------------------------------------------

    async def _close(
        self, chosen: Sequence[batches.Waiting], out: MemoryObjectSendStream[batches.Batch]
    ) -> None:
        """Make the open step's batch of these groups, or continue if none of them has a signal."""
        step, plan = self.admission.step, self.plan
        fresh = [waiting for waiting in chosen if not waiting.num_uses]
        for waiting in fresh:
            waiting.samples = tuple(batches.make_samples([waiting.group], plan, self.sample_ids))
        self.buffer.take(chosen, step=step)
        groups = [*self._replaced, *(waiting.group for waiting in fresh)]
        self._gathered += groups
        self._replaced = []
        samples = [sample for waiting in chosen for sample in waiting.samples]
        if not samples:
            for waiting in fresh:
                self.admission.leave(waiting.deadline)
            self._without_signal += 1
            await self.ports.sink.put(batches.no_signal(step, groups))
            if self._without_signal >= batches.MAX_BATCHES_WITHOUT_SIGNAL:
                raise Stalled(batches.no_signal_error(step, self._gathered))
            return
        self.admission.close(waiting.deadline for waiting in fresh)
        batch = batches.Batch(
            step=step,
            groups=tuple(self._gathered),
            samples=tuple(samples),
            state=to_state(
                self.sampler.state(),
                waiting=(waiting.group for waiting in self.buffer.fresh),
                problems=(*self._playing.values(), *self.past.problems),
            ),
            num_stale=self._num_stale,
            num_replayed=len(chosen) - len(fresh),
            in_flight=len(self._playing),
        )
        self._gathered, self._without_signal, self._num_stale = [], 0, 0
        await self.ports.sink.put(*(s for waiting in fresh for s in waiting.samples))
        await out.send(batch)

    # -- waiting ---------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Wait until something may have changed: with no group in play, that is a publish."""
        woken = self._woken
        if self._playing:
            await woken.wait()
            return
        needed = self.admission.step - 1 - self.plan.max_staleness
        await self.published.wait_for(needed, timeout_s=self.plan.publish_timeout_s)

    def _wake(self) -> None:
        self._woken.set()
        self._woken = anyio.Event()


def _concurrency(plan: batches.BatchPlan) -> Concurrency | None:
    """None for a fixed number of groups: a given one, or a whole batch in the synchronous loop."""
    if plan.in_flight is not None or plan.max_staleness == 0:
        return None
    return Concurrency(min(plan.groups_per_step, plan.budget), plan.budget)
