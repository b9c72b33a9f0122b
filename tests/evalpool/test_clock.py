"""Two clocks and an interval, on made-up times."""

from __future__ import annotations

import numpy as np
import pytest

from forge.evalpool.judge.clock import Calls, Clocked, Unsupported, clocked, speedup

DRY = tuple(150.0 + i % 5 for i in range(15))


def calls(event: float, wall: float, num: int = 40) -> Calls:
    noise = [0.5 * (i % 3) for i in range(num)]
    return Calls(
        event_us=tuple(event + one for one in noise), wall_us=tuple(wall + one for one in noise)
    )


def test_a_supported_claim_is_the_time() -> None:
    found = clocked(calls(200.0, 355.0), dry_us=DRY)
    assert found.us == 200.5
    assert found.resolution_us == 10.0


def test_the_outer_clock_is_the_time_where_it_says_a_little_more() -> None:
    found = clocked(calls(200.0, 400.0), dry_us=DRY)
    assert found.us == pytest.approx(400 - 152 - 10)
    assert np.median(found.samples_us) == pytest.approx(found.us)


@pytest.mark.parametrize("event", [0.0, 3.0, 100.0])
def test_a_claim_that_the_outer_clock_contradicts_is_refused(event: float) -> None:
    """A side stream, a patched event: 300 us passed, the events say less."""
    with pytest.raises(Unsupported, match="the judge's clock has 3"):
        clocked(calls(event, 452.0), dry_us=DRY)


def test_below_the_resolution_a_claim_stands_but_the_floor_holds() -> None:
    assert clocked(calls(3.0, 158.0), dry_us=DRY).us == 3.5
    with pytest.raises(Unsupported, match=r"reading the inputs alone takes 20\.0 us"):
        clocked(calls(3.0, 158.0), dry_us=DRY, floor_us=20.0)


def test_not_a_number_is_no_time() -> None:
    times = Calls(event_us=(float("nan"),) * 9, wall_us=(300.0,) * 9)
    with pytest.raises(Unsupported):
        clocked(times, dry_us=DRY)


def samples(center: float, width: float) -> Clocked:
    values = tuple(np.random.default_rng(0).normal(center, width, 50))
    return Clocked(
        us=float(np.median(values)), samples_us=values, spread_us=width, resolution_us=10.0
    )


def test_the_interval_widens_with_noise_and_ends_below_the_ratio() -> None:
    rng = np.random.default_rng(1)
    quiet = speedup(samples(200, 1), samples(400, 1), min_us=100, rng=rng)
    noisy = speedup(samples(200, 40), samples(400, 80), min_us=100, rng=rng)
    assert quiet.ratio == pytest.approx(2.0, rel=0.01)
    assert quiet.low == pytest.approx(2.0, rel=0.01)
    assert noisy.low < 0.97 * noisy.ratio


def test_a_short_time_is_only_as_good_as_the_outer_clock() -> None:
    rng = np.random.default_rng(1)
    found = speedup(samples(10, 0.1), samples(20, 0.1), min_us=100, rng=rng)
    assert found.ratio == pytest.approx(2.0, rel=0.02)
    assert found.low == pytest.approx(1.0, rel=0.02)
