"""Two samples of times side by side, in text. Pure; used by `judge_report.py`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NUM_BINS = 12
WIDTH = 30
"""Characters of the longest bar."""
LONGEST_SHARE = 0.99
"""The slowest hundredth is gathered in the last bin: one hiccup would flatten all the others."""


def histogram(first: Sequence[float], second: Sequence[float]) -> Iterator[str]:
    """A line a bin: where it starts, a bar for `first`, a bar for `second`."""
    everything = sorted([*first, *second])
    if not everything:
        return
    low = everything[0]
    high = everything[min(len(everything) - 1, math.ceil(LONGEST_SHARE * len(everything)) - 1)]
    step = (high - low) / NUM_BINS or 1.0
    counts = [_count(sample, low=low, step=step) for sample in (first, second)]
    most = max(max(one) for one in counts)
    last = max(index for index in range(NUM_BINS) if counts[0][index] or counts[1][index])
    for index in range(last + 1):
        one, other = (_bar(each[index], most) for each in counts)
        yield f"{low + index * step:10.4g}  {one:<{WIDTH}}  {other}".rstrip()


def _count(sample: Sequence[float], *, low: float, step: float) -> list[int]:
    counts = [0] * NUM_BINS
    for value in sample:
        counts[min(NUM_BINS - 1, int((value - low) / step))] += 1
    return counts


def _bar(count: int, most: int) -> str:
    return "█" * math.ceil(WIDTH * count / most) if count else ""
