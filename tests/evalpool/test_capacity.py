"""Cores of the judges of a pool."""

from __future__ import annotations

import pytest

from forge.evalpool.capacity import seat_cores


@pytest.mark.parametrize(
    ("num_cores", "num_seats", "expected"),
    [
        (2, 2, [(0,), (1,)]),
        (8, 2, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (2, 3, [(0,), (1,), (0,)]),
        (3, 2, [(0,), (1,)]),
    ],
)
def test_judges_share_the_cores(
    num_cores: int, num_seats: int, expected: list[tuple[int, ...]]
) -> None:
    cores = range(num_cores)
    found = [seat_cores(cores, seat=seat, num_seats=num_seats) for seat in range(num_seats)]
    assert found == expected


def test_two_runs_begin_at_different_cores() -> None:
    assert seat_cores(range(8), seat=0, num_seats=8, offset=11) == (3,)
