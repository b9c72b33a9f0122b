# pyright: strict
"""Growth of a series of samples after a warm-up, in percent an hour with its interval (`soak.py`).

Growth is that of a straight line through the means of each minute, relative to the line's value at
the end of the warm-up. Minutes next to each other are alike, so the interval comes from a moving
block bootstrap of the residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BIN_S = 60.0
BLOCK_BINS = 5
"""Minutes that are drawn together: an evaluation and a checkpoint fit into them."""
DRAWS = 2000
MAX_PERCENT_AN_HOUR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A line through the samples after the warm-up."""

    level: float
    """Value of the line at the end of the warm-up."""
    last: float
    """Value of the line at the end."""
    percent_an_hour: float
    low: float
    """Ends of the 95 % interval of `percent_an_hour`."""
    high: float

    @property
    def is_within(self) -> bool:
        """True if it grows by at most MAX_PERCENT_AN_HOUR."""
        return self.percent_an_hour <= MAX_PERCENT_AN_HOUR


def fit_growth(seconds: Sequence[float], values: Sequence[float]) -> Growth:
    """Growth of samples, of which the first is at the end of the warm-up.

    Raises:
        ValueError: they span less than three minutes.
    """
    times, means = _minutes(np.asarray(seconds, float), np.asarray(values, float))
    if len(times) < 3:
        raise ValueError("less than three minutes after the warm-up")
    hours = (times - seconds[0]) / 3600
    centred = hours - hours.mean()
    weights = centred / (centred @ centred)
    slope = float(weights @ means)
    level = float(means.mean() - slope * hours.mean())
    residuals = means - level - slope * hours
    draw = np.random.default_rng(0)
    slopes = [slope + float(weights @ _blocks(residuals, draw)) for _ in range(DRAWS)]
    low, high = np.percentile(slopes, [2.5, 97.5])
    scale = 100.0 / level if level else 0.0
    return Growth(
        level=level,
        last=level + slope * (seconds[-1] - seconds[0]) / 3600,
        percent_an_hour=slope * scale,
        low=float(low * scale),
        high=float(high * scale),
    )


def has_more(values: Sequence[float]) -> bool:
    """True if a count grew: the median of its last third exceeds the maximum of its first third."""
    third = max(1, len(values) // 3)
    return float(np.median(values[-third:])) > max(values[:third])


def _minutes(seconds: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean time and mean value of each minute that has samples."""
    bins = ((seconds - seconds[0]) // BIN_S).astype(int)
    kept = np.unique(bins)
    return (
        np.array([seconds[bins == each].mean() for each in kept]),
        np.array([values[bins == each].mean() for each in kept]),
    )


def _blocks(residuals: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Residuals drawn anew in blocks of neighbours, as many as there are."""
    count, size = len(residuals), min(BLOCK_BINS, len(residuals))
    starts = draw.integers(0, count - size + 1, size=-(-count // size))
    return np.concatenate([residuals[start : start + size] for start in starts])[:count]
