"""pass@k, its interval, and the paired comparison of two evaluations. Pure Python, seeded, no run
needed.

pass@k is the unbiased estimate of arXiv 2107.03374: of n samples with c correct, the chance that k
drawn without replacement hold a correct one, 1 − C(n−c, k) / C(n, k); averaged over problems.
Samples of one problem are not independent, so intervals resample problems, not samples (cluster
bootstrap, percentiles).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

NUM_RESAMPLES = 2000
"""Percentiles at 2.5 % then rest on 50 resamples in each tail; 64 problems take 10 ms."""
TAIL = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What one problem's samples came to."""

    num: int
    correct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over problems with its 95 % interval."""

    value: float
    low: float
    high: float
    num_problems: int


def pass_at_k(tally: Tally, k: int) -> float:
    """Unbiased pass@k of one problem. Raises ValueError where it has fewer than k samples."""
    if not 1 <= k <= tally.num:
        raise ValueError(f"pass@{k} of {tally.num} samples")
    return 1.0 - math.comb(tally.num - tally.correct, k) / math.comb(tally.num, k)


def estimate_pass_at_k(tallies: Sequence[Tally], k: int, *, seed: int = 0) -> Estimate | None:
    """pass@k over the problems that have k samples; None where none has."""
    return estimate_mean([pass_at_k(t, k) for t in tallies if t.num >= k], seed=seed)


def estimate_mean(values: Sequence[float], *, seed: int = 0) -> Estimate | None:
    """Mean of one number in 0..1 a problem, with its cluster-bootstrap interval; None for no
    problems.

    Where all problems agree on 0 or 1 every resample does too: the open end is then the exact
    binomial bound with problems as trials (0 of 64: at most 5.6 %).
    """
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    low, high = _percentiles(values, seed=seed, span=(0.0, 1.0))
    bound = 1.0 - TAIL ** (1.0 / len(values))
    if all(value == 0.0 for value in values):
        high = bound
    if all(value == 1.0 for value in values):
        low = 1.0 - bound
    return Estimate(value=mean, low=low, high=high, num_problems=len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """b minus a, over the problems that both have."""

    value: float
    low: float
    high: float
    num_problems: int


def compare_paired(
    a: Mapping[str, Tally], b: Mapping[str, Tally], *, k: int = 1, seed: int = 0
) -> Difference | None:
    """How much better b is at pass@k, problem by problem: pairing removes what is hard for both.
    None without common ones.
    """
    both = [name for name in sorted(a.keys() & b.keys()) if min(a[name].num, b[name].num) >= k]
    if not both:
        return None
    values = [pass_at_k(b[name], k) - pass_at_k(a[name], k) for name in both]
    low, high = _percentiles(values, seed=seed, span=(-1.0, 1.0))
    return Difference(
        value=math.fsum(values) / len(values), low=low, high=high, num_problems=len(values)
    )


def estimate_difference(values: Sequence[float], *, seed: int = 0) -> Difference | None:
    """Mean of one difference a problem, of any size, with its interval; None for fewer than two,
    which say nothing about others.
    """
    if len(values) < 2:
        return None
    low, high = _percentiles(values, seed=seed, span=(-math.inf, math.inf))
    return Difference(
        value=math.fsum(values) / len(values), low=low, high=high, num_problems=len(values)
    )


def _percentiles(
    values: Sequence[float], *, seed: int, span: tuple[float, float]
) -> tuple[float, float]:
    """2.5 and 97.5 % of the means of resampled problems, interpolated between neighbours; of one
    problem, which says nothing about others, all that is possible."""
    if len(values) == 1:
        return span
    num = len(values)
    means = sorted(math.fsum(draw(values)) / num for draw in _resamples(num, seed))
    return _quantile(means, TAIL), _quantile(means, 1.0 - TAIL)


@lru_cache(maxsize=8)
def _resamples(num: int, seed: int) -> tuple[itemgetter, ...]:
    """The draws for so many problems: the figures of one evaluation share them, 4 times quicker."""
    rng = random.Random(seed)
    return tuple(itemgetter(*rng.choices(range(num), k=num)) for _ in range(NUM_RESAMPLES))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
