"""The number of groups played at once follows the load of engine and judges."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.records import EngineLoad
from forge.rollout.concurrency import CHANGE_EVERY_S, Concurrency


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


def test_two_changes_are_some_seconds_apart() -> None:
    limit = Concurrency(10, 40)
    limits = [
        limit.update(load(), judge_queue=0, judge_capacity=1, now=now)
        for now in (0.0, 4.9, 5.0, 9.9, 10.0)
    ]
    assert limits == [10, 10, 13, 13, 17]


def test_a_small_limit_also_rises_and_falls() -> None:
    assert after(load(), start=1) == 2
    assert after(load(kv_use=0.99, waiting=9), start=2) == 1


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
