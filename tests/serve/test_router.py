"""The choice of a replica: by prefix and load."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forge.serve.served import BLOCK_TOKENS, Router

SYSTEM = list(range(2 * BLOCK_TOKENS))
"""Common start of all prompts of a run."""


def choose(router: Router, *loads: int, prompt: list[int]) -> int:
    """Number of the server that is chosen among those with these loads."""
    up: list[Any] = [SimpleNamespace(name=f"{i}", load=n) for i, n in enumerate(loads)]
    return int(router.choose(up, prompt).name)


def problem(number: int, *, num_tokens: int = 4 * BLOCK_TOKENS) -> list[int]:
    return SYSTEM + [1000 + number] * num_tokens


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8))
def test_without_a_prefix_cache_the_first_of_the_least_loaded_is_chosen(samples: list[int]) -> None:
    chosen = choose(Router(slots=32), *samples, prompt=SYSTEM)
    assert chosen == samples.index(min(samples))


def test_later_turns_and_further_samples_go_to_the_replica_with_their_prefix() -> None:
    router = Router(slots=32, has_prefix_cache=True)
    homes = {n: choose(router, 0, 0, 0, prompt=problem(n)) for n in range(3)}
    # All three have the system prompt, so only a replica's own problem differs.
    assert homes[0] == 0
    choose(router, 9, 0, 9, prompt=problem(7))
    assert choose(router, 3, 3, 3, prompt=problem(7) + [5] * 300) == 1
    assert choose(router, 0, 3, 0, prompt=problem(7)) == 1, "3 of 32 slots are hardly busy"


def test_a_much_busier_replica_loses_prompts_with_its_prefix() -> None:
    router = Router(slots=32, has_prefix_cache=True)
    assert choose(router, 0, 1, prompt=problem(1)) == 0
    assert choose(router, 41, 40, prompt=problem(1)) == 0, "hardly busier"
    assert choose(router, 41, 30, prompt=problem(1)) == 1
    assert choose(router, 5, 4, prompt=problem(1)) == 1, "both know it by now"


def test_a_replica_that_died_has_no_prefixes() -> None:
    router = Router(slots=32, has_prefix_cache=True)
    choose(router, 0, 1, prompt=problem(1))
    assert choose(router, 2, 0, prompt=problem(1)) == 0
    router.forget("0")
    assert choose(router, 2, 0, prompt=problem(1)) == 1
