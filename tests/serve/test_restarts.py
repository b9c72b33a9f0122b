"""The back-off of restarts."""

from __future__ import annotations

from forge.serve.replica import Restarts


def test_the_pause_doubles_up_to_a_limit_and_then_restarts_end() -> None:
    restarts = Restarts(limit=4, first_delay_s=1.0, longest_delay_s=5.0)
    assert [restarts.after_death(float(now)) for now in range(5)] == [1.0, 2.0, 4.0, 5.0, None]


def test_deaths_outside_the_window_are_forgotten() -> None:
    restarts = Restarts(limit=2, window_s=100.0, first_delay_s=1.0)
    assert [restarts.after_death(now) for now in (0.0, 200.0, 400.0, 600.0)] == [1.0] * 4
