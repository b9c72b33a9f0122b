"""The choice of a replica: by prefix, load and pace, without silent ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forge.serve.router import (
    BLOCK_TOKENS,
    FIRST_AVOIDED_S,
    LEAST_PATIENCE_S,
    LONGEST_AVOIDED_S,
    PATIENCE,
    ReplicaLoad,
    Router,
)

SYSTEM = list(range(2 * BLOCK_TOKENS))
"""Common start of all prompts of a run."""


def loads(*samples: int, slots: int = 32) -> list[ReplicaLoad]:
    return [ReplicaLoad(name=f"r{i}", samples=n, slots=slots) for i, n in enumerate(samples)]


def problem(number: int, *, num_tokens: int = 4 * BLOCK_TOKENS) -> list[int]:
    return SYSTEM + [1000 + number] * num_tokens


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8))
def test_without_a_prefix_cache_the_first_of_the_least_loaded_is_chosen(samples: list[int]) -> None:
    chosen = Router().choose(loads(*samples), SYSTEM, now=0.0)
    assert chosen == samples.index(min(samples))


def test_later_turns_and_further_samples_go_to_the_replica_with_their_prefix() -> None:
    router = Router(has_prefix_cache=True)
    homes = {n: router.choose(loads(0, 0, 0), problem(n), now=0.0) for n in range(3)}
    # All three have the system prompt, so only a replica's own problem differs.
    assert homes[0] == 0
    router.choose(loads(9, 0, 9), problem(7), now=0.0)
    assert router.choose(loads(3, 3, 3), problem(7) + [5] * 300, now=0.0) == 1
    assert router.choose(loads(0, 3, 0), problem(7), now=0.0) == 1, "3 of 32 slots are hardly busy"


def test_a_much_busier_replica_loses_prompts_with_its_prefix() -> None:
    router = Router(has_prefix_cache=True)
    assert router.choose(loads(0, 1), problem(1), now=0.0) == 0
    assert router.choose(loads(41, 40), problem(1), now=0.0) == 0, "hardly busier"
    assert router.choose(loads(41, 30), problem(1), now=0.0) == 1
    assert router.choose(loads(5, 4), problem(1), now=0.0) == 1, "both know it by now"


def test_a_replica_that_died_has_no_prefixes() -> None:
    router = Router(has_prefix_cache=True)
    router.choose(loads(0, 1), problem(1), now=0.0)
    assert router.choose(loads(2, 0), problem(1), now=0.0) == 0
    router.forget("r0")
    assert router.choose(loads(2, 0), problem(1), now=0.0) == 1


def test_blocks_that_no_replica_has_any_more_take_no_memory() -> None:
    router = Router(has_prefix_cache=True)
    for number in range(20):
        router.choose(loads(0, 1), problem(number), now=0.0)
    router.choose(loads(9, 0), problem(0), now=0.0)  # r1 evaluates that one, too
    router.forget_prefixes("r0")
    assert 0 < len(router._blocks) == len(problem(0)) // BLOCK_TOKENS
    router.forget_prefixes("r1")
    assert not router._blocks


def test_a_slower_replica_gets_proportionally_fewer_requests() -> None:
    router = Router()
    for _ in range(20):
        router.answered("r0", seconds=10.0, num_tokens=100)
        router.answered("r1", seconds=40.0, num_tokens=100)
    given_to = [0, 0]
    for _ in range(100):
        given_to[router.choose(loads(*given_to), SYSTEM, now=0.0)] += 1
    assert 75 <= given_to[0] <= 85, "four fifths of the work to the one that is four times as fast"
    for _ in range(5):
        router.answered("r1", seconds=0.1, num_tokens=1)
    assert router.choose(loads(3, 1), SYSTEM, now=0.0) == 0, "short answers carry little weight"
    even = Router()
    even.answered("r0", seconds=10.0, num_tokens=100)
    even.answered("r1", seconds=12.0, num_tokens=100)
    assert even.choose(loads(5, 4), SYSTEM, now=0.0) == 1, "a fifth more is chance"


def test_patience_grows_with_the_slowest_answer_and_begins_with_the_first() -> None:
    router = Router()
    assert router.patience_s(100) is None
    router.answered("r0", seconds=0.1, num_tokens=100)
    assert router.patience_s(100) == LEAST_PATIENCE_S
    router.answered("r0", seconds=20.0, num_tokens=100)
    router.answered("r0", seconds=0.5, num_tokens=1)
    assert router.patience_s(200) == PATIENCE * 40.0
    assert router.patience_s(50) == PATIENCE * 20.0


def test_a_silent_replica_is_avoided_then_tried_alone_then_trusted_again() -> None:
    router = Router()
    router.was_silent("r0", now=0.0)
    router.was_silent("r0", now=1.0)  # of the same silence: counts once
    assert router.choose(loads(0, 50), SYSTEM, now=FIRST_AVOIDED_S - 1) == 1
    assert router.is_avoided("r0", now=FIRST_AVOIDED_S - 1)
    assert router.choose(loads(0, 50), SYSTEM, now=FIRST_AVOIDED_S) == 0
    assert router.choose(loads(1, 50), SYSTEM, now=FIRST_AVOIDED_S) == 1, "one at a time"
    assert router.choose(loads(0), SYSTEM, now=1.0) == 0, "no other replica is up"
    router.was_silent("r0", now=20.0)
    assert router.is_avoided("r0", now=20.0 + 2 * FIRST_AVOIDED_S - 1)
    for _ in range(10):
        router.was_silent("r0", now=1e6)
    assert not router.is_avoided("r0", now=1e6 + LONGEST_AVOIDED_S)
    router.answered("r0", seconds=1.0, num_tokens=10)
    assert router.choose(loads(1, 50), SYSTEM, now=1e6) == 0


@given(
    st.lists(st.tuples(st.integers(0, 64), st.booleans()), min_size=1, max_size=6),
    st.integers(0, 20),
    st.booleans(),
)
def test_one_of_the_replicas_that_are_up_is_always_chosen(
    facts: list[tuple[int, bool]], number: int, has_cache: bool
) -> None:
    router = Router(has_prefix_cache=has_cache)
    for index, (_, is_silent) in enumerate(facts):
        router.answered(f"r{index}", seconds=0.0, num_tokens=0)
        if is_silent:
            router.was_silent(f"r{index}", now=0.0)
    up = loads(*(samples for samples, _ in facts))
    chosen = router.choose(up, problem(number), now=1.0)
    trusted = [index for index, (_, is_silent) in enumerate(facts) if not is_silent]
    assert chosen in (trusted or range(len(up)))
