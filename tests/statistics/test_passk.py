"""pass@k equals brute force; intervals cover the truth, paired comparisons find small gains."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.statistics.passk import (
    Tally,
    compare_paired,
    estimate_mean,
    estimate_pass_at_k,
    pass_at_k,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(1, 9))
def test_pass_at_k_equals_brute_force(samples: list[bool], k: int) -> None:
    tally = Tally(num=len(samples), correct=sum(samples))
    if k > len(samples):
        with pytest.raises(ValueError, match=f"pass@{k}"):
            pass_at_k(tally, k)
        return
    drawn = list(itertools.combinations(samples, k))
    assert pass_at_k(tally, k) == pytest.approx(sum(any(each) for each in drawn) / len(drawn))


def test_the_interval_is_the_same_for_the_same_seed_and_contains_the_mean() -> None:
    rng = random.Random(1)
    values = [rng.random() for _ in range(40)]
    first = estimate_mean(values, seed=3)
    assert first == estimate_mean(values, seed=3)
    assert first is not None
    assert first.low < first.value < first.high


def test_the_interval_resamples_problems_not_samples() -> None:
    """Eight equal answers to a problem carry no more evidence than one: the interval stays."""
    few = [Tally(num=1, correct=i % 2) for i in range(20)]
    many = [Tally(num=8, correct=8 * (i % 2)) for i in range(20)]
    assert estimate_pass_at_k(few, 1) == estimate_pass_at_k(many, 1)


def test_the_interval_covers_the_truth_in_most_experiments() -> None:
    rng = random.Random(0)
    covered = 0
    for trial in range(60):
        tallies = []
        for _ in range(40):
            p = rng.betavariate(1, 3)
            tallies.append(Tally(num=4, correct=sum(rng.random() < p for _ in range(4))))
        found = estimate_pass_at_k(tallies, 1, seed=trial)
        assert found is not None
        covered += found.low <= 0.25 <= found.high
    assert covered >= 51  # 95 % of 60 is 57; below 51 has a chance of 1 in 10,000


def test_no_success_in_many_problems_still_has_an_upper_bound() -> None:
    none = estimate_mean([0.0] * 64)
    every = estimate_mean([1.0] * 64)
    assert none is not None
    assert every is not None
    assert (none.low, round(none.high, 3)) == (0.0, 0.056)
    assert (round(every.low, 3), every.high) == (0.944, 1.0)
    assert estimate_mean([]) is None


def test_one_problem_says_nothing_about_others() -> None:
    half = estimate_mean([0.5])
    gain = compare_paired({"p": Tally(num=4, correct=0)}, {"p": Tally(num=4, correct=4)})
    assert half is not None
    assert gain is not None
    assert (half.low, half.high) == (0.0, 1.0)
    assert (gain.low, gain.value, gain.high) == (-1.0, 1.0, 1.0)


def test_pairing_finds_a_small_gain_that_two_intervals_hide() -> None:
    rng = random.Random(0)
    before = {f"p{i}": Tally(num=8, correct=rng.randint(0, 7)) for i in range(40)}
    after = {name: Tally(num=8, correct=tally.correct + 1) for name, tally in before.items()}
    gain = compare_paired(before, after)
    assert gain is not None
    assert gain.value == pytest.approx(0.125)
    assert gain.low > 0
    same = compare_paired(before, before)
    assert same is not None
    assert same.low <= 0 <= same.high
    assert compare_paired(before, {}) is None
