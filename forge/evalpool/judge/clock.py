"""From raw times to a speed-up: two clocks, their resolution, an interval. Pure; numpy only.

Called by `gpu_trial.py`. A candidate's own events are a claim. The judge's wall clock, less what
the same frames, flush and copies cost without a forward (the dry wall, measured in the process of
the baseline, where no candidate has been), bounds it from outside (design, section 6, row 12):

    candidate_us = max(event, wall - dry - resolution)

event and dry being medians, wall the lower quartile: a busy machine only ever adds to it,
and no time may be below the roofline floor, what the device needs to read the inputs once. Medians
say nothing of a candidate that does its work in some calls only: where the slower ones take much
longer, their time is the candidate's. Not covered: less than a quarter of such calls, which the
outputs that are compared in secret must show.

A claim that does not stand is charged with what does; it is refused where more is missing than a
busy machine explains, as then somebody hides work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_RESOLUTION_US = 10.0
"""Of the wall clock: frames, wake-ups. An idle H200's box: 4 to 10 us between quartiles."""
RELATIVE_RESOLUTION = 0.02
"""Of the same: a forward's last writes and the copies of its outputs meet in the memory."""
UNSUPPORTED_RATIO, MIN_HIDDEN_US = 1.5, 100.0
"""A claim that the wall clock exceeds by this factor and by so much is refused."""
FLOOR_SLACK = 0.9
"""Of the floor: data sheets' peaks are approached, and sometimes clocks are above them."""
SLOW_PERCENTILE = 75
MAX_SLOW_RATIO, MIN_SLOW_US = 3.0, 20.0
"""What that percentile of a claim's calls may take, over their median, before it is the time: by
this factor or this much, whichever is more. Honest kernels on an H200: IQR over median 0.0005 to
0.015."""
MIN_EVENT_US = 0.5
"""An event's resolution: nothing is known to be faster, and no time is 0."""
NUM_RESAMPLES = 1000
LOW_PERCENTILE = 2.5

Samples = NDArray[np.float64]


class Unsupported(Exception):
    """A claimed time that the judge's own clock contradicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Times of one process's calls, in us, in order."""

    event_us: tuple[float, ...]
    """As the process says."""
    wall_us: tuple[float, ...]
    """From the judge's request to the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocked:
    """A time that both clocks support."""

    us: float
    samples_us: tuple[float, ...]
    spread_us: float
    """Interquartile range."""
    resolution_us: float
    is_charged: bool = False
    """Whether much more than was claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """baseline / candidate, and the lower end of its 95 % bootstrap interval."""

    ratio: float
    low: float


def clocked(calls: Calls, *, dry_us: tuple[float, ...], floor_us: float = 0.0) -> Clocked:
    """The time of one call.

    Args:
        dry_us: wall times of calls without a forward.
        floor_us: no honest call is faster; 0 where none is known.

    Raises:
        Unsupported: the claim is far below what the judge's clock or the device allows, or far
            below what many of the calls take.
    """
    event, wall, dry = (np.asarray(one) for one in (calls.event_us, calls.wall_us, dry_us))
    claimed = float(np.median(event))
    resolution = max(MIN_RESOLUTION_US, 2 * spread(dry), RELATIVE_RESOLUTION * claimed)
    outside = float(np.percentile(wall, 25) - np.median(dry)) - resolution
    if not np.isfinite(event).all() or claimed < FLOOR_SLACK * floor_us:
        raise Unsupported(
            f"its events claim {claimed:.1f} us; reading the inputs alone takes {floor_us:.1f} us"
        )
    slow = float(np.percentile(event, SLOW_PERCENTILE))
    if slow <= max(MAX_SLOW_RATIO * claimed, claimed + MIN_SLOW_US):
        slow = claimed
    if slow > claimed + MIN_HIDDEN_US:
        raise Unsupported(
            f"its events claim {claimed:.1f} us, but {slow:.0f} or more in every fourth call: "
            "is the work done in some calls only?"
        )
    if outside > max(UNSUPPORTED_RATIO * claimed, claimed + MIN_HIDDEN_US):
        raise Unsupported(
            f"its events claim {claimed:.1f} us, the judge's clock has {outside + resolution:.0f}: "
            "work on another stream, or after the last event?"
        )
    us = max(claimed, slow, outside, MIN_EVENT_US)
    samples = np.maximum(event + (us - claimed), MIN_EVENT_US)
    return Clocked(
        us=us,
        samples_us=tuple(float(one) for one in samples),
        spread_us=spread(samples),
        resolution_us=resolution,
        is_charged=us > max(UNSUPPORTED_RATIO * claimed, claimed + resolution),
    )


def speedup(
    candidate: Clocked, baseline: Clocked, *, min_us: float, rng: np.random.Generator
) -> Speedup:
    """Of medians. Below `min_us` the wall clock bounds too little: its resolution is added to the
    candidate's time in the lower end."""
    ratio = baseline.us / candidate.us
    resampled = _medians(baseline, rng) / _medians(candidate, rng)
    low = float(np.percentile(resampled, LOW_PERCENTILE))
    if candidate.us < min_us:
        low *= candidate.us / (candidate.us + candidate.resolution_us)
    return Speedup(ratio=ratio, low=min(low, ratio))


def spread(samples: Samples) -> float:
    """Interquartile range."""
    low, high = np.percentile(samples, (25, 75))
    return float(high - low)


def _medians(clocked: Clocked, rng: np.random.Generator) -> Samples:
    samples = np.asarray(clocked.samples_us)
    drawn = rng.integers(0, samples.size, size=(NUM_RESAMPLES, samples.size))
    return np.median(samples[drawn], axis=1)
