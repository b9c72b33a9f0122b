"""Admission and buffer: in any order of ends, no group is too old when it is trained, none is
thrown away, and nothing waits forever. The limit of groups played at once follows the load.
"""

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.records import EngineLoad, Group, Purpose, Sample
from forge.rollout.admission import CHANGE_EVERY_S, Admission, Concurrency
from forge.rollout.batches import Buffer, Waiting

LAST_STEP = 6


def finished(number: int, deadline: int) -> Waiting:
    group = Group(
        group_id=number, problem_id="p", purpose=Purpose.TRAIN, stage=0, step=0, trajectories=()
    )
    return Waiting(group=group, deadline=deadline, samples=(sample(number),))


def sample(number: int) -> Sample:
    return Sample(
        sample_id=number, group_id=number, rollout=0, turn=0, prompt_ids=(1,), completion_ids=(2,),
        logprobs=(-1.0,), advantage=1.0, policy_version=0,
    )  # fmt: skip


@given(st.data())
def test_every_group_is_trained_in_time_in_any_order_of_ends_and_publishes(
    data: st.DataObject,
) -> None:
    size = data.draw(st.integers(1, 4), label="groups_per_step")
    staleness = data.draw(st.integers(0, 3), label="max_staleness")
    replay = data.draw(st.integers(1, 3), label="replay")
    admission = Admission(
        step=1, last_step=LAST_STEP, groups_per_step=size, max_staleness=staleness
    )
    buffer, numbers = Buffer(replay=replay), count()
    playing: list[tuple[int, int]] = []  # number, deadline
    served, sampled_at, uses = 0, dict[int, int](), dict[int, int]()
    while admission.step <= LAST_STEP:
        deadline = admission.deadline(served)
        acts = ["publish"] if served < admission.step - 1 else []
        acts += ["end"] * bool(playing) + ["flat"] * bool(playing)
        acts += ["admit"] * admission.fits(deadline)
        chosen = buffer.choose(admission, is_awaited=served == admission.step - 1)
        acts += ["close"] * (chosen is not None)
        assert acts, "deadlock: no action is possible"
        act = data.draw(st.sampled_from(acts), label="act")
        if act == "publish":
            served += 1
        elif act == "admit":
            admission.admit(deadline)
            number = next(numbers)
            playing.append((number, deadline))
            sampled_at[number] = served
        elif act in ("end", "flat"):
            ended = playing.pop(data.draw(st.integers(0, len(playing) - 1), label="which"))
            if act == "end":
                buffer.fresh.append(finished(*ended))
            else:
                admission.leave(ended[1])
        elif chosen is not None:
            step = admission.step
            assert len(chosen) == size
            for waiting in chosen:
                number = waiting.group.group_id
                uses[number] = uses.get(number, 0) + 1
                assert uses[number] <= replay
                assert step - 1 - sampled_at[number] <= staleness, "too old"
            fresh = [waiting.deadline for waiting in chosen if not waiting.num_uses]
            buffer.take(chosen, step=step)
            admission.close(fresh)
    assert not playing
    assert not buffer.fresh
    assert admission.num_open == 0


@given(size=st.integers(1, 5), staleness=st.integers(0, 3))
def test_as_many_groups_are_admitted_as_staleness_allows(size: int, staleness: int) -> None:
    admission = Admission(step=1, last_step=99, groups_per_step=size, max_staleness=staleness)
    while admission.fits(admission.deadline(0)):
        admission.admit(admission.deadline(0))
    assert admission.num_open == size * (1 + staleness)
    assert admission.nominal_step == 2 + staleness


def test_faster_groups_overtake_a_slow_one_until_its_deadline() -> None:
    admission = Admission(step=1, last_step=9, groups_per_step=2, max_staleness=1)
    buffer = Buffer()
    for _ in range(4):
        admission.admit(2)
    buffer.fresh.append(finished(1, 2))
    buffer.fresh.append(finished(2, 2))
    first = buffer.choose(admission, is_awaited=True)
    assert first is not None, "made of the two that ended, though two began earlier"
    buffer.take(first, step=1)
    admission.close([2, 2])
    for _ in range(2):  # step 1 was published: these may wait for step 3
        admission.admit(3)
    buffer.fresh.append(finished(3, 3))
    buffer.fresh.append(finished(4, 3))
    assert buffer.choose(admission, is_awaited=True) is None, "two that are due now still run"
    buffer.fresh.append(finished(5, 2))
    buffer.fresh.append(finished(6, 2))
    second = buffer.choose(admission, is_awaited=True)
    assert second is not None
    assert [waiting.group.group_id for waiting in second] == [5, 6]


def test_used_groups_fill_at_most_half_of_a_batch_and_only_while_the_trainer_waits() -> None:
    admission = Admission(step=1, last_step=9, groups_per_step=2, max_staleness=1)
    buffer = Buffer(replay=2)
    for number in range(2):
        admission.admit(2)
        buffer.fresh.append(finished(number, 2))
    chosen = buffer.choose(admission, is_awaited=True)
    assert chosen is not None
    buffer.take(chosen, step=1)
    admission.close([2, 2])
    assert buffer.choose(admission, is_awaited=True) is None, "nothing is new"
    admission.admit(3)
    buffer.fresh.append(finished(2, 3))
    assert buffer.choose(admission, is_awaited=False) is None
    mixed = buffer.choose(admission, is_awaited=True)
    assert mixed is not None
    assert [waiting.group.group_id for waiting in mixed] == [2, 0]
    buffer.take(mixed, step=2)
    assert buffer.used == [mixed[0]], "group 0 was trained twice, group 1 is too old for step 3"


def load(**changes: Any) -> EngineLoad:
    return EngineLoad(**{"kv_use": 0.5, "waiting": 0, "running": 8, "slots": 64, **changes})


def after(seen: EngineLoad | None, *, queue: int = 0, start: int = 10, rounds: int = 2) -> int:
    limit = Concurrency(start, 40)
    for turn in range(rounds):
        limit.update(seen, judge_queue=queue, judge_capacity=4, now=turn * CHANGE_EVERY_S)
    return limit.limit


@pytest.mark.parametrize(
    ("seen", "queue", "limit"),
    [
        (load(), 0, 13),
        (load(), 9, 10),
        (load(waiting=1), 0, 10),
        (load(kv_use=0.7), 0, 10),
        (load(kv_use=0.95), 0, 10),
        (load(kv_use=0.95, waiting=3), 0, 8),
        (load(kv_use=1.0, waiting=3, running=64), 0, 10),
        (None, 0, 10),
    ],
)
def test_the_limit_rises_with_free_memory_and_falls_when_samples_wait_for_it(
    seen: EngineLoad | None, queue: int, limit: int
) -> None:
    assert after(seen, queue=queue) == limit


loads = st.builds(load, kv_use=st.floats(0, 1), waiting=st.integers(0, 99))


@given(st.lists(st.tuples(st.none() | loads, st.integers(0, 99)), max_size=60), st.integers(1, 20))
def test_the_limit_stays_between_one_and_its_ceiling(
    facts: list[tuple[EngineLoad | None, int]], start: int
) -> None:
    limit = Concurrency(start, 20)
    for turn, (seen, queue) in enumerate(facts):
        limit.update(seen, judge_queue=queue, judge_capacity=2, now=turn * CHANGE_EVERY_S)
        assert 1 <= limit.limit <= 20


def test_the_limit_settles_near_the_number_of_groups_that_fills_the_engine() -> None:
    """Ten groups fill it: the limit settles around that number, from any start."""
    for start in (1, 30):
        limit = Concurrency(start, 40)
        seen: list[int] = []
        for turn in range(40):
            groups = limit.limit
            now = load(kv_use=min(groups / 10, 1.0), waiting=max(groups - 10, 0) * 5)
            seen.append(
                limit.update(now, judge_queue=0, judge_capacity=1, now=turn * CHANGE_EVERY_S)
            )
        assert all(6 <= limit <= 11 for limit in seen[-10:]), seen
