"""The loop on fakes of its ports: groups, multi-turn play, batches, pacing."""

import math
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest

from forge import records
from forge.errors import Stalled
from forge.rollout.admission import PublishedSteps
from forge.rollout.batches import Batch, BatchPlan, count_from, make_samples
from forge.rollout.past import Past
from forge.rollout.play import GroupPlace, play_group
from forge.rollout.producer import produce_batches
from forge.rollout.sampling import UniformSampler
from tests.rollout.fakes import FakePolicy, batch_plan, fake_judge, mixed, ports, problem, rules

PLACE = GroupPlace(group_id=5, purpose=records.Purpose.TRAIN, stage=3, step=1)


async def test_a_rollout_stops_at_a_correct_kernel_and_every_turn_is_stored() -> None:
    use, sink, _ = ports(lambda seed, i, length: 1 if i == 0 else 2)
    group = await play_group(problem(), place=PLACE, rules=rules(), ports=use)
    ends = {t.rollout: (t.end, len(t.turns)) for t in group.trajectories}
    assert ends[0] == (records.End.CORRECT, 1)
    assert len(sink.of(records.Turn)) == sum(n for _, n in ends.values())
    assert sink.of(records.Group) == [group]
    assert len(sink.of(records.Trajectory)) == 4


async def test_later_turns_get_the_judges_feedback() -> None:
    use, sink, policy = ports(lambda seed, i, length: 2 if length < 3 else 1)
    group = await play_group(problem(), place=PLACE, rules=rules(), ports=use)
    assert all(t.end is records.End.CORRECT and len(t.turns) == 3 for t in group.trajectories)
    assert {len(p) for p in policy.asked} == {1, 2, 3}
    assert all(turn.feedback for turn in sink.of(records.Turn))


async def test_separate_requests_let_short_answers_be_judged_while_long_ones_are_generated() -> (
    None
):
    slow, judged = anyio.Event(), list[str]()

    class Policy(FakePolicy):
        async def __call__(self, prompt: records.Prompt, **asked: Any) -> list[records.Completion]:
            self.asked.append(prompt.ids)
            if len(self.asked) == 1:
                await slow.wait()
            return await super().__call__(prompt, **asked)

    async def judge(problem: records.Problem, code: str) -> records.Verdict:
        judged.append(code)
        if len(judged) == 3:
            slow.set()
        return await fake_judge(problem, code)

    use, _, _ = ports(lambda seed, i, length: 1)
    with anyio.fail_after(5):
        group = await play_group(
            problem(), place=PLACE, rules=rules(),
            ports=replace(use, generate=Policy(lambda *_: 1), judge=judge, is_apart=True),
        )  # fmt: skip
    assert [len(t.turns) for t in group.trajectories] == [1] * 4


@pytest.mark.parametrize(("code", "end"), [(3, records.End.INFRA), (4, records.End.UNJUDGEABLE)])
async def test_a_verdict_without_a_score_masks_the_whole_rollout(
    code: int, end: records.End
) -> None:
    use, _, _ = ports(lambda seed, i, length: code if i == 1 else 1)
    group = await play_group(problem(), place=PLACE, rules=rules(), ports=use)
    broken = next(t for t in group.trajectories if t.end is end)
    assert (end.is_masked, end.is_unscored) == (True, True)
    assert broken.returns == (None,)
    assert broken.turns[0].reward is None


async def test_a_conversation_that_outgrows_the_context_is_stored_and_masked() -> None:
    use, sink, _ = ports(lambda seed, i, length: 2, room=2)
    group = await play_group(problem(), place=PLACE, rules=rules(), ports=use)
    assert all(t.end is records.End.CONTEXT_FULL for t in group.trajectories)
    assert len(sink.of(records.Turn)) == 8
    assert group.is_flat
    assert all(r is None for t in group.trajectories for r in t.returns)


@pytest.mark.parametrize("turn", [0, 1])
async def test_a_server_that_refuses_a_later_turn_ends_the_rollout_and_not_the_run(
    turn: int,
) -> None:
    class Refused(Exception): ...

    class Policy(FakePolicy):
        async def __call__(self, prompt: records.Prompt, **asked: Any) -> list[records.Completion]:
            if len(prompt.ids) > turn:
                raise Refused("too long")
            return await super().__call__(prompt, **asked)

    use, sink, _ = ports(lambda seed, i, length: 2)
    policy = Policy(lambda *_: 2)
    use = replace(use, generate=policy, refused=(Refused,), is_apart=True)
    playing = partial(play_group, problem(), place=PLACE, rules=rules(), ports=use)
    if turn == 0:
        with pytest.raises(ExceptionGroup) as raised:
            await playing()
        assert raised.group_contains(Refused)
        return
    group = await playing()
    assert [(t.end, len(t.turns)) for t in group.trajectories] == [
        (records.End.CONTEXT_FULL, 1)
    ] * 4
    assert [event.message for event in sink.of(records.Event)] == [
        "p: turn 2 was refused: too long"
    ] * 4


async def test_a_problem_that_does_not_fit_ends_context_full_without_turns() -> None:
    use, sink, policy = ports(lambda seed, i, length: 1, room=0)
    group = await play_group(problem(), place=PLACE, rules=rules(), ports=use)
    assert [t.end for t in group.trajectories] == [records.End.CONTEXT_FULL] * 4
    assert not policy.asked
    assert len(sink.of(records.Trajectory)) == 4
    assert [event.kind for event in sink.of(records.Event)] == ["context_full"]


async def test_an_answer_without_code_is_rejected_with_an_explanation() -> None:
    use, sink, _ = ports(lambda seed, i, length: 0)
    await play_group(problem(), place=PLACE, rules=rules(max_turns=1), ports=use)
    verdicts = [turn.verdict for turn in sink.of(records.Turn)]
    assert {(v.status, v.reason) for v in verdicts} == {(records.Status.REJECTED, "no_code_block")}
    assert all("code block" in v.detail for v in verdicts)


async def run_loop(
    plan: BatchPlan,
    choose: Any,
    *,
    delay: Any = lambda: 0.0,
    room: int = 10,
    first_group: int = 0,
    past: Past | None = None,
) -> tuple[list[Batch], list[int]]:
    """Run the loop with a trainer that publishes one version per batch; returns the batches and the
    staleness of every sample at its use."""
    use, _, policy = ports(choose, room=room)
    published, staleness, batches = PublishedSteps(), [], []
    send, receive = anyio.create_memory_object_stream[Batch](0)
    put, take = anyio.create_memory_object_stream[Batch](math.inf)
    sampler = UniformSampler([problem(f"p{i}") for i in range(5)], seed=0)

    async def offer() -> None:
        """Take each batch at once, as the run does: only pacing holds the loop back."""
        async with receive, put:
            async for batch in receive:
                batches.append(batch)
                await put.send(batch)

    async def train() -> None:
        async with take:
            async for batch in take:
                await anyio.sleep(delay())
                staleness.extend(policy.version - s.policy_version for s in batch.samples)
                policy.version += 1
                published.advance(batch.step)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(offer)
            tasks.start_soon(train)
            await produce_batches(
                plan, sampler=sampler, rules=rules(), ports=use, published=published,
                group_ids=count_from(first_group - 1), sample_ids=count_from(-1), out=send,
                step_of=lambda version: version, past=past,
            )  # fmt: skip
    return batches, staleness


async def test_a_resumed_batch_uses_the_finished_groups() -> None:
    plan = batch_plan(last_step=1, groups_per_step=3)
    (before, *_), _ = await run_loop(plan, mixed)
    finished = before.groups[1]
    past = Past(ended=[finished])
    (after, *_), _ = await run_loop(plan, mixed, first_group=10, past=past)
    assert finished in after.groups, "not played again"
    assert sorted(g.group_id for g in after.groups) == [finished.group_id, 10, 11]
    assert {g.problem_id for g in after.groups} == {g.problem_id for g in before.groups}
    assert {s.group_id for s in after.samples} == {g.group_id for g in after.groups}
    assert after.state == before.state


async def test_a_waiting_group_is_used_without_a_draw() -> None:
    plan = batch_plan(last_step=1, groups_per_step=3)
    (before, *_), _ = await run_loop(plan, mixed)
    waited = before.groups[2]
    past = Past(waiting=[waited], problems=deque([problem("p4")]))
    (after, *_), _ = await run_loop(plan, mixed, first_group=10, past=past)
    names = [g.problem_id for g in before.groups]
    assert [g.problem_id for g in after.groups] == [names[2], "p4", names[0]]
    assert after.groups[0] is waited


async def test_flat_groups_are_replaced_within_the_budget_and_leave_no_samples() -> None:
    flat_problems: set[int] = set()

    def choose(seed: int, i: int, length: int) -> int:
        return 1 if seed % 3 == 0 else (1 if i % 2 else 2)

    batches, _ = await run_loop(batch_plan(), choose)
    for batch in batches:
        flat = {g.group_id for g in batch.groups if g.is_flat}
        flat_problems |= flat
        assert len(batch.groups) <= 2 + 2
        assert not flat & {s.group_id for s in batch.samples}
    assert flat_problems, "the fake must make some flat groups"


@pytest.mark.parametrize(
    ("answer", "room", "advice"),
    [
        (2, 10, "0 of 72 turns correct.*more SFT"),
        (1, 10, "24 of 24 turns correct.*harder problems"),
        (3, 10, "the judge failed on 24 of 24 rollouts"),
        (4, 10, "the problems of 24 of 24 rollouts cannot be judged: .forge problems check"),
        (1, 0, "no prompt fits serve.context_tokens"),
        (2, 2, "24 of 24 rollouts do not fit serve.context_tokens"),
    ],
)
async def test_three_batches_without_signal_end_the_run_with_advice(
    answer: int, room: int, advice: str
) -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(Stalled, match=f"3 batches in a row.*{advice}"),
        allow_unwrapped=True,
        flatten_subgroups=True,
    ):
        await run_loop(batch_plan(max_replacements=0), lambda seed, i, length: answer, room=room)


async def test_each_batch_without_signal_is_an_event_with_the_cause() -> None:
    use, sink, _ = ports(lambda seed, i, length: 2)
    send, receive = anyio.create_memory_object_stream[Batch](0)
    with receive, pytest.RaisesGroup(Stalled):
        await produce_batches(
            batch_plan(max_replacements=0), sampler=UniformSampler([problem()], seed=0),
            rules=rules(), ports=use, published=PublishedSteps(),
            group_ids=count_from(-1), sample_ids=count_from(-1), out=send,
            step_of=lambda version: version,
        )  # fmt: skip
    events = sink.of(records.Event)
    assert [(e.kind, e.data["step"]) for e in events] == [("no_signal", 1)] * 3
    assert all("more SFT" in e.message for e in events)


@pytest.mark.parametrize("train_truncated", [True, False])
async def test_truncated_answers_are_trained_only_if_the_plan_says_so(
    train_truncated: bool,
) -> None:
    use, _, _ = ports(mixed)
    group = await play_group(problem(), place=PLACE, rules=rules(max_turns=1), ports=use)
    first = group.trajectories[0]
    completion = replace(first.turns[0].completion, finish=records.Finish.LENGTH)
    cut = replace(first, turns=(replace(first.turns[0], completion=completion),))
    group = replace(group, trajectories=(cut, *group.trajectories[1:]))
    plan = batch_plan(train_truncated=train_truncated)
    rollouts = [sample.rollout for sample in make_samples([group], plan, count_from(-1))]
    assert rollouts == ([0, 1, 2, 3] if train_truncated else [1, 2, 3])
