# pyright: strict
"""Times of calls, and the speed-up between two of them with an interval. Pure; numpy only.

A time is the GPU time of a CUDA graph between two events, of a process that runs our own code
alone: the executor's for a candidate, a baseline child's for the reference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESOLUTION_US = 0.5
"""Resolution of a CUDA event, and the least time that a call can have."""
STEADY_SHARE = 0.02
"""Interquartile range of steady times, relative to their median."""
NUM_RESAMPLES = 1000
LOW_PERCENTILE = 2.5

Samples = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Time of one call, from several calls."""

    us: float
    """Median."""
    samples_us: tuple[float, ...]
    spread_us: float
    """Interquartile range."""

    def is_steady(self) -> bool:
        """True if more calls would not change the median by much."""
        return self.spread_us <= max(RESOLUTION_US, STEADY_SHARE * self.us)

    @classmethod
    def of(cls, samples_us: tuple[float, ...]) -> Time:
        """Raises ValueError without samples."""
        if not samples_us:
            raise ValueError("no samples")
        samples = np.maximum(np.asarray(samples_us), RESOLUTION_US)
        return cls(
            us=float(np.median(samples)),
            samples_us=tuple(float(one) for one in samples),
            spread_us=spread(samples),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """baseline / candidate, and the lower end of its 95 % bootstrap interval."""

    ratio: float
    low: float


def speedup(candidate: Time, baseline: Time, *, min_us: float, rng: np.random.Generator) -> Speedup:
    """Ratio of medians. Below `min_us` the events' resolution counts: it is added to the
    candidate's time in the lower end."""
    ratio = baseline.us / candidate.us
    resampled = _medians(baseline, rng) / _medians(candidate, rng)
    low = float(np.percentile(resampled, LOW_PERCENTILE))
    if candidate.us < min_us:
        low *= candidate.us / (candidate.us + RESOLUTION_US)
    return Speedup(ratio=ratio, low=min(low, ratio))


def spread(samples: Samples) -> float:
    """Interquartile range."""
    low, high = np.percentile(samples, (25, 75))
    return float(high - low)


def _medians(time: Time, rng: np.random.Generator) -> Samples:
    samples = np.asarray(time.samples_us)
    drawn = rng.integers(0, samples.size, size=(NUM_RESAMPLES, samples.size))
    return np.median(samples[drawn], axis=1)
