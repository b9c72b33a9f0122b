"""The choice of a replica: by prefix and load."""

from hypothesis import given
from hypothesis import strategies as st

from forge.serve.served import BLOCK_TOKENS, ReplicaLoad, Router

SYSTEM = list(range(2 * BLOCK_TOKENS))
"""Common start of all prompts of a run."""


def loads(*samples: int, slots: int = 32) -> list[ReplicaLoad]:
    return [ReplicaLoad(name=f"r{i}", samples=n, slots=slots) for i, n in enumerate(samples)]


def problem(number: int, *, num_tokens: int = 4 * BLOCK_TOKENS) -> list[int]:
    return SYSTEM + [1000 + number] * num_tokens


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8))
def test_without_a_prefix_cache_the_first_of_the_least_loaded_is_chosen(samples: list[int]) -> None:
    chosen = Router().choose(loads(*samples), SYSTEM)
    assert chosen == samples.index(min(samples))


def test_later_turns_and_further_samples_go_to_the_replica_with_their_prefix() -> None:
    router = Router(has_prefix_cache=True)
    homes = {n: router.choose(loads(0, 0, 0), problem(n)) for n in range(3)}
    # All three have the system prompt, so only a replica's own problem differs.
    assert homes[0] == 0
    router.choose(loads(9, 0, 9), problem(7))
    assert router.choose(loads(3, 3, 3), problem(7) + [5] * 300) == 1
    assert router.choose(loads(0, 3, 0), problem(7)) == 1, "3 of 32 slots are hardly busy"


def test_a_much_busier_replica_loses_prompts_with_its_prefix() -> None:
    router = Router(has_prefix_cache=True)
    assert router.choose(loads(0, 1), problem(1)) == 0
    assert router.choose(loads(41, 40), problem(1)) == 0, "hardly busier"
    assert router.choose(loads(41, 30), problem(1)) == 1
    assert router.choose(loads(5, 4), problem(1)) == 1, "both know it by now"


def test_a_replica_that_died_has_no_prefixes() -> None:
    router = Router(has_prefix_cache=True)
    router.choose(loads(0, 1), problem(1))
    assert router.choose(loads(2, 0), problem(1)) == 0
    router.forget("r0")
    assert router.choose(loads(2, 0), problem(1)) == 1
