"""The producer on fake ports: never dry, no sample too old, no paid group lost by a resume."""

import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.errors import Stalled
from forge.records import Completion, EngineLoad, Group, Problem, Prompt, Sample
from forge.rollout import producer as producer_module
from forge.rollout.admission import PublishedSteps
from forge.rollout.batches import Batch, BatchPlan
from forge.rollout.past import Past, recall
from forge.rollout.producer import produce_batches
from forge.rollout.sampling import Sampler, make_sampler
from tests.examples import examples
from tests.rollout.fakes import FakePolicy, Recorder, batch_plan, mixed, ports, problem, rules

PROBLEMS = [problem(f"p{i}") for i in range(7)]


@dataclass
class Loop:
    """A producer and a trainer that publishes one version per batch, at random ticks."""

    plan: BatchPlan
    chance: random.Random
    choose: Any = mixed
    policy: FakePolicy = field(default_factory=lambda: FakePolicy(mixed))
    published: PublishedSteps = field(default_factory=PublishedSteps)
    batches: list[Batch] = field(default_factory=list)
    trained: list[tuple[int, Sample, int]] = field(default_factory=list)
    """Step, sample, staleness."""
    playing: list[int] = field(default_factory=list)
    """Number of answers in progress, at each start and end of one."""
    group_ids: Iterator[int] = field(default_factory=count)
    sample_ids: Iterator[int] = field(default_factory=count)
    sink: Recorder = field(default_factory=Recorder)
    slowness: Any = lambda chance: chance.randint(0, 9)
    train_ticks: Any = lambda chance: chance.randint(0, 20)
    max_ticks: int = 10_000

    async def run(self, sampler: Sampler, past: Past | None = None) -> None:
        use, _, _ = ports(self.choose)
        self.policy.choose = self.choose
        use = replace(use, generate=self._generate, sink=self.sink)
        send, receive = anyio.create_memory_object_stream[Batch](0)
        put, take = anyio.create_memory_object_stream[Batch](math.inf)

        async def offer() -> None:
            async with receive, put:
                async for batch in receive:
                    self.batches.append(batch)
                    await put.send(batch)

        async def train() -> None:
            async with take:
                async for batch in take:
                    await ticks(self.train_ticks(self.chance))
                    version = self.policy.version
                    self.trained += [
                        (batch.step, s, version - s.policy_version) for s in batch.samples
                    ]
                    self.policy.version += 1
                    await ticks(self.chance.randint(0, 3))  # as a publish in the background
                    self.published.advance(batch.step)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(offer)
            tasks.start_soon(train)
            await produce_batches(
                self.plan, sampler=sampler, rules=rules(max_turns=2), ports=use,
                published=self.published, group_ids=self.group_ids, sample_ids=self.sample_ids,
                out=send, step_of=lambda version: version, past=past,
            )  # fmt: skip

    async def _generate(self, prompt: Prompt, **asked: Any) -> list[Completion]:
        self.playing.append((self.playing[-1] if self.playing else 0) + 1)
        answer = await self.policy(prompt, **asked)
        await ticks(self.slowness(self.chance))
        self.playing.append(self.playing[-1] - 1)
        return answer


async def ticks(number: int) -> None:
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


def plans(**changes: Any) -> st.SearchStrategy[BatchPlan]:
    drawn = st.fixed_dictionaries(
        {
            "last_step": st.integers(1, 6),
            "groups_per_step": st.integers(1, 4),
            "max_replacements": st.integers(0, 3),
            "max_staleness": st.integers(0, 3),
            "replay": st.integers(1, 3),
            "in_flight": st.none() | st.integers(1, 9),
        }
    )
    return drawn.map(lambda keys: batch_plan(**{**keys, **changes}))


chances = st.integers(0, 10**6).map(random.Random)


@given(plans(), chances)
@settings(max_examples=examples(80), deadline=None)
def test_in_any_interleaving_no_sample_is_too_old_and_all_batches_are_complete(
    plan: BatchPlan, chance: random.Random
) -> None:
    loop = Loop(plan=plan, chance=chance, choose=lambda seed, i, length: 1 if i % 2 else 2)
    with_deadline(loop.run, make_sampler("uniform", PROBLEMS, seed=0))
    assert [batch.step for batch in loop.batches] == list(range(1, plan.last_step + 1))
    assert max(staleness for _, _, staleness in loop.trained) <= plan.max_staleness
    uses = Counter((step, sample.sample_id) for step, sample, _ in loop.trained)
    assert set(uses.values()) == {1}
    times = Counter(sample.sample_id for _, sample, _ in loop.trained)
    assert max(times.values()) <= plan.replay
    stored = [r.sample_id for r in loop.sink.of(Sample)]
    assert len(stored) == len(set(stored)), "a replayed sample is stored once"
    for batch in loop.batches:
        assert len({s.group_id for s in batch.samples}) == plan.groups_per_step
        assert len(batch.groups) + batch.num_replayed == plan.groups_per_step
    counted = [g.group_id for batch in loop.batches for g in batch.groups]
    assert len(counted) == len(set(counted)), "a replayed group is counted as played once"


def with_deadline(run: Any, *args: Any) -> None:
    async def within() -> None:
        with anyio.fail_after(20):
            await run(*args)

    anyio.run(within)


@given(st.integers(0, 10**6).map(random.Random), st.integers(1, 3), st.integers(8, 64))
@settings(max_examples=examples(150), deadline=None)
def test_a_resumed_run_trains_every_played_group_and_none_twice(
    chance: random.Random, staleness: int, break_after: int
) -> None:
    """The run is broken after some answers, then resumed as the runner does it: from the state of
    the last batch and the store."""
    plan = batch_plan(
        last_step=5, groups_per_step=4, max_replacements=0, max_staleness=staleness, in_flight=16
    )
    first = Loop(plan=plan, chance=chance, slowness=sometimes_slow)
    sampler = make_sampler("uniform", PROBLEMS, seed=0)

    async def broken() -> None:
        original, asked = first.policy.__class__.__call__, count()

        async def until(self: FakePolicy, *args: Any, **kwargs: Any) -> list[Completion]:
            if next(asked) == break_after:
                raise Killed
            return await original(self, *args, **kwargs)

        first.policy.__class__ = type("Breaking", (FakePolicy,), {"__call__": until})
        with suppress(Killed, ExceptionGroup):
            await first.run(sampler)

    anyio.run(broken)
    done = len(first.batches)
    in_batches = {s.group_id for batch in first.batches for s in batch.samples}
    untrained = [g for g in first.sink.of(Group) if g.group_id not in in_batches]
    second = make_sampler("uniform", PROBLEMS, seed=0)
    past = Past(ended=untrained)
    if first.batches:
        state = json.loads(json.dumps(dict(first.batches[-1].state)))
        second.restore(state["sampler"])
        past = recall(state, untrained=untrained, problems=PROBLEMS)
    resumed = Loop(
        plan=replace(plan, first_step=done + 1), chance=chance, slowness=sometimes_slow,
        published=PublishedSteps(done), group_ids=count(1000), sample_ids=count(1000),
    )  # fmt: skip
    resumed.policy.version = done
    if done < plan.last_step:
        with_deadline(resumed.run, second, past)
    batches = [*first.batches, *resumed.batches]
    assert [batch.step for batch in batches] == list(range(1, plan.last_step + 1))
    trained = Counter((b.step, s.group_id) for b in batches for s in b.samples)
    steps_of_group = Counter(group_id for _, group_id in trained)
    assert max(steps_of_group.values()) == 1, "a group was trained twice"
    played = Counter(g.problem_id for b in batches for g in b.groups)
    total = plan.last_step * plan.groups_per_step
    assert sum(played.values()) == total
    stale = sum(batch.num_stale for batch in batches)
    fair = make_sampler("uniform", PROBLEMS, seed=0)
    expected = Counter(fair.next().problem_id for _ in range(total))
    if not stale:
        assert played == expected, "problems come in the order of a run without a break"
        taken = {g.group_id for b in resumed.batches for g in b.groups}
        assert {g.group_id for g in untrained} <= taken, "what was paid for is not played again"


async def test_generation_continues_beside_a_slow_group_and_a_slow_trainer() -> None:
    """The synchronous loop waits for the slowest group of each batch; here, others overtake it."""

    spans: dict[int, int] = {}
    for staleness in (0, 1):
        plan = batch_plan(max_staleness=staleness, last_step=12, groups_per_step=4)
        loop = Loop(
            plan=plan,
            chance=random.Random(3),
            slowness=sometimes_slow,
            train_ticks=lambda chance: 60,
        )
        clock = Clock()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clock.run)
            await loop.run(make_sampler("uniform", PROBLEMS, seed=0))
            tasks.cancel_scope.cancel()
        spans[staleness] = clock.ticks
    assert spans[1] < 0.7 * spans[0], spans


def sometimes_slow(chance: random.Random) -> int:
    """Duration of an answer in ticks: mostly 5, sometimes 400."""
    return 400 if chance.random() < 0.1 else 5


class Killed(Exception):
    """Stands for a signal."""


class Clock:
    ticks = 0

    async def run(self) -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            self.ticks += 1


async def test_samples_from_a_restarted_trainers_old_weights_are_dropped_if_too_old() -> None:
    """It publishes its checkpoint, step 0, after step 3 was published: new samples are three steps
    old, and step 4 may train samples that are one step old."""
    plan = batch_plan(first_step=4, last_step=4, groups_per_step=2)
    loop = Loop(plan=plan, chance=random.Random(0), published=PublishedSteps(3))
    loop.policy.version = 0

    async def come_back() -> None:
        await ticks(60)
        loop.policy.version = 3

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(come_back)
            await loop.run(make_sampler("uniform", PROBLEMS, seed=0))
    (batch,) = loop.batches
    assert batch.num_stale > 0
    assert {s.policy_version for s in batch.samples} == {3}


async def test_nothing_is_admitted_while_a_restarted_trainer_catches_up() -> None:
    published = PublishedSteps(3)
    published.advance(1)  # a checkpoint of step 1 was published again
    loop = Loop(
        plan=batch_plan(first_step=4, last_step=4, publish_timeout_s=0.05),
        chance=random.Random(0), published=published,
    )  # fmt: skip
    with pytest.RaisesGroup(
        pytest.RaisesExc(Stalled, match="the last published is 1"), flatten_subgroups=True
    ):
        await loop.run(make_sampler("uniform", PROBLEMS, seed=0))
    assert not loop.playing


async def test_the_number_of_groups_follows_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """With free memory in the engine, more groups than a batch has; without a report, no more."""
    now = iter(range(0, 10**6, 10))
    monkeypatch.setattr(producer_module.anyio, "current_time", lambda: next(now))

    roomy = EngineLoad(kv_use=0.1, running=1, waiting=0, slots=99)
    most: dict[bool, int] = {}
    for says in (False, True):
        plan = batch_plan(last_step=6, groups_per_step=4, max_staleness=3)
        in_flight: list[int] = []

        async def generate(
            prompt: Prompt, counts: list[int] = in_flight, **asked: Any
        ) -> list[Completion]:
            counts.append(1)
            await ticks(10)
            answer = await FakePolicy(mixed)(prompt, **asked)
            counts.append(-1)
            return answer

        use, _, _ = ports(mixed)
        use = replace(use, generate=generate, load=lambda says=says: roomy if says else None)
        send, receive = anyio.create_memory_object_stream[Batch](math.inf)
        published = PublishedSteps()

        async def publish(batches: Any = receive, pacing: PublishedSteps = published) -> None:
            async with batches:
                async for batch in batches:
                    pacing.advance(batch.step)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            await produce_batches(
                plan, sampler=make_sampler("uniform", PROBLEMS, seed=0),
                rules=rules(max_turns=1), ports=use, published=published, group_ids=count(),
                sample_ids=count(), out=send, step_of=lambda version: 6,
            )  # fmt: skip
        running, peak = 0, 0
        for change in in_flight:
            running += change
            peak = max(peak, running)
        most[says] = peak
    assert most[False] == 4
    assert 4 < most[True] <= 16


async def test_problems_being_played_come_first_after_a_resume() -> None:
    drawn: list[str] = []

    class Drawing(Sampler):
        """A uniform sampler that records its draws."""

        def __init__(self) -> None:
            self.inner = make_sampler("uniform", PROBLEMS, seed=0)

        def next(self) -> Problem:
            found = self.inner.next()
            drawn.append(found.problem_id)
            return found

        def state(self) -> dict[str, Any]:
            return self.inner.state()

        def restore(self, state: Any) -> None: ...

    state = {"sampler": {}, "waiting": [{"group": 5, "problem": "p1"}], "problems": ["p6", "gone"]}
    past = recall(state, untrained=[], problems=PROBLEMS)
    loop = Loop(plan=batch_plan(last_step=1, groups_per_step=3), chance=random.Random(0))
    await loop.run(Drawing(), past)
    played = {g.problem_id for g in loop.batches[0].groups}
    assert {"p1", "p6"} < played
    assert len(drawn) == 1
