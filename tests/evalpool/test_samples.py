"""Times of calls and speed-ups: medians, intervals, and the resolution of events."""

from __future__ import annotations

import numpy as np
import pytest

from forge.evalpool.judge.timing.samples import RESOLUTION_US, Time, speedup


def samples(center: float, width: float) -> Time:
    return Time.of(tuple(np.random.default_rng(0).normal(center, width, 50)))


def test_a_time_is_the_median_of_its_calls() -> None:
    found = Time.of((4.0, 4.0, 900.0, 5.0, 4.5))
    assert (found.us, found.spread_us) == (4.5, 1.0)
    with pytest.raises(ValueError, match="no samples"):
        Time.of(())


def test_no_time_is_shorter_than_an_event_can_show() -> None:
    found = Time.of((-0.5, 0.0, 0.1))
    assert (found.us, min(found.samples_us)) == (RESOLUTION_US, RESOLUTION_US)
    ratio = speedup(found, found, min_us=100, rng=np.random.default_rng(1))
    assert 0 < ratio.low < ratio.ratio == 1


def test_the_interval_widens_with_noise_and_ends_below_the_ratio() -> None:
    rng = np.random.default_rng(1)
    quiet = speedup(samples(200, 1), samples(400, 1), min_us=100, rng=rng)
    noisy = speedup(samples(200, 40), samples(400, 80), min_us=100, rng=rng)
    assert quiet.ratio == pytest.approx(2.0, rel=0.01)
    assert quiet.low == pytest.approx(2.0, rel=0.01)
    assert noisy.low < 0.97 * noisy.ratio


def test_a_short_time_is_only_as_good_as_the_events() -> None:
    rng = np.random.default_rng(1)
    found = speedup(samples(5, 0.01), samples(10, 0.01), min_us=100, rng=rng)
    assert found.ratio == pytest.approx(2.0, rel=0.02)
    assert found.low == pytest.approx(2.0 * 5 / 5.5, rel=0.02)
