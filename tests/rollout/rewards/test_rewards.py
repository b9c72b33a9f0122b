"""Reward terms, returns of turns, advantages in a group."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.config.schema import RewardTable
from forge.records import Status, Timing, Verdict
from forge.rollout.rewards import (
    group_advantages,
    is_flat,
    reward_terms,
    turn_returns,
)

TABLE = RewardTable()
GAMMA, MAX_TURNS = 0.4, 3
rewards = st.lists(st.floats(-1, 2), min_size=1, max_size=MAX_TURNS)


def verdict(status: Status, *, compiled: bool = False, speedup_low: float | None = None) -> Verdict:
    timing = None
    if speedup_low is not None:
        timing = Timing(
            speedup=speedup_low, speedup_low=speedup_low, candidate_us=1.0, baseline_us=speedup_low,
            candidate_spread_us=0.0, baseline_spread_us=0.0,
        )  # fmt: skip
    return Verdict(status=status, reason="ok", detail="", is_compiled=compiled, timing=timing)


def reward(of: Verdict, table: RewardTable = TABLE) -> float:
    terms = reward_terms(of, table)
    assert terms is not None
    return sum(terms.values())


def test_a_correct_kernel_earns_compiled_and_correct() -> None:
    assert reward(verdict(Status.CORRECT, compiled=True)) == pytest.approx(0.8)


def test_compiled_is_paid_only_for_is_compiled() -> None:
    assert reward(verdict(Status.WRONG, compiled=False)) == 0.0
    assert reward(verdict(Status.WRONG, compiled=True)) == pytest.approx(0.3)


def test_an_infra_error_is_never_scored() -> None:
    assert reward_terms(verdict(Status.INFRA_ERROR), TABLE) is None


def test_speedup_is_logarithmic_capped_and_never_negative_by_default() -> None:
    base = reward(verdict(Status.CORRECT, compiled=True))
    fast = reward(verdict(Status.CORRECT, compiled=True, speedup_low=2.0))
    assert fast - base == pytest.approx(0.2 * math.log(2))
    capped = reward(verdict(Status.CORRECT, compiled=True, speedup_low=1e6))
    assert capped - base == pytest.approx(0.2 * math.log(10))
    assert reward(verdict(Status.CORRECT, compiled=True, speedup_low=0.5)) == pytest.approx(base)
    strict = RewardTable(slower_penalty=True)
    assert reward(verdict(Status.CORRECT, compiled=True, speedup_low=0.5), strict) < base


def test_returns_follow_the_formula() -> None:
    got = turn_returns([0.0, 0.3, 0.8], gamma=GAMMA, max_turns=3)
    first = 0.3 * 0.4 + 0.8 * 0.16
    assert got == pytest.approx((first, 0.3 + 0.8 * (0.4 + 0.16), 0.8 * (1 + 0.4 + 0.16)))


def test_trajectory_credit_gives_every_turn_the_first_return() -> None:
    got = turn_returns([0.0, 0.8], gamma=GAMMA, max_turns=2, credit="trajectory")
    assert got == pytest.approx((0.32, 0.32))


@given(rewards)
def test_stopping_early_earns_as_much_as_repeating_the_last_answer(taken: list[float]) -> None:
    repeated = taken + [taken[-1]] * (MAX_TURNS - len(taken))
    stopped = turn_returns(taken, gamma=GAMMA, max_turns=MAX_TURNS)
    waited = turn_returns(repeated, gamma=GAMMA, max_turns=MAX_TURNS)
    assert stopped == pytest.approx(waited[: len(taken)])


@given(st.floats(-1, 2), st.lists(st.integers(1, MAX_TURNS), min_size=2, max_size=8))
def test_turns_that_all_earn_the_same_make_a_flat_group(each: float, lengths: list[int]) -> None:
    rows = [turn_returns([each] * n, gamma=GAMMA, max_turns=MAX_TURNS) for n in lengths]
    assert is_flat(rows)


returns_lists = st.lists(
    st.lists(st.one_of(st.none(), st.floats(-2, 2)), min_size=1, max_size=3), min_size=2, max_size=8
)


@given(returns_lists, st.sampled_from(["group", "none"]))
def test_advantages_sum_to_zero_and_ignore_a_shift(
    returns: list[list[float | None]], scale
) -> None:
    advantages = group_advantages(returns, scale=scale)
    flat = [a for row in advantages for a in row if a is not None]
    assert sum(flat) == pytest.approx(0.0, abs=1e-6)
    shifted = [[None if r is None else r + 5.0 for r in row] for row in returns]
    if is_flat(returns):
        return
    for got, want in zip(group_advantages(shifted, scale=scale), advantages, strict=True):
        assert [g for g in got if g is not None] == pytest.approx(
            [w for w in want if w is not None], abs=1e-4
        )


def test_masked_turns_count_in_neither_mean_nor_advantages() -> None:
    got = group_advantages([[1.0, None], [0.0, None]], scale="none")
    assert got == [[0.5, None], [-0.5, None]]


def test_a_group_of_equal_or_masked_returns_is_flat() -> None:
    assert is_flat([[0.3], [0.3, 0.3]])
    assert is_flat([[None], [None]])
    assert not is_flat([[0.3], [0.8]])
