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


@pytest.mark.parametrize("share", [0.3, 0.6, 0.7])
def test_a_claim_for_calls_that_skip_their_work_is_refused(share: float) -> None:
    """1,000 us of work, left out in most calls: each clock's median would be 12."""
    rng = np.random.default_rng(0)
    event = tuple(rng.permutation([12.0] * int(50 * share) + [1000.0] * (50 - int(50 * share))))
    times = Calls(event_us=event, wall_us=tuple(one + 152 for one in event))
    if share < 0.5:
        assert clocked(times, dry_us=DRY).us == 1000.0
        return
    with pytest.raises(Unsupported, match=r"claim 12\.0 us, but 1000 or more in every fourth call"):
        clocked(times, dry_us=DRY)


def test_a_machine_whose_launches_are_slow_is_charged_and_not_refused() -> None:
    """Where a launch takes about as long as the flush, some calls show it and some do not."""
    two_humped = Calls(event_us=(6.0,) * 30 + (55.0,) * 20, wall_us=(200.0,) * 50)
    found = clocked(two_humped, dry_us=DRY)
    assert (found.us, found.is_charged) == (55.0, True)
    slow_process = clocked(calls(6.0, 215.0), dry_us=DRY)
    assert (slow_process.us, slow_process.is_charged) == (pytest.approx(215 - 152 - 10), True)
    assert not clocked(calls(200.0, 400.0), dry_us=DRY).is_charged


def test_a_busy_machine_in_a_few_calls_or_a_little_is_no_mixture() -> None:
    few = Calls(event_us=(50.0,) * 40 + (900.0,) * 9, wall_us=(202.0,) * 49)
    assert clocked(few, dry_us=DRY).us == 50.0
    little = Calls(event_us=(4.0,) * 30 + (23.0,) * 20, wall_us=(156.0,) * 50)
    assert clocked(little, dry_us=DRY).us == 4.0


def test_no_time_is_shorter_than_an_event_can_tell() -> None:
    found = clocked(calls(-0.5, 150.0), dry_us=DRY)
    assert found.us == 0.5
    assert min(found.samples_us) == 0.5
    ratio = speedup(found, found, min_us=100, rng=np.random.default_rng(1))
    assert 0 < ratio.low < ratio.ratio == 1


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
