"""A supervisor killed at 100 random moments, by name: `pytest -n 10 tests/chaos -k random`.

Each of ten runs is killed ten times, as early as in its imports and as late as in its last step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.random_kills import kill_at_random
from tests.chaos.table import record

if TYPE_CHECKING:
    from tests.chaos.tiny_experiments import Taught

RUNS = 10
KILLS = 10


@pytest.mark.chaos
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(RUNS))
def test_a_supervisor_killed_at_random_moments_loses_nothing(
    seed: int, taught: Taught, request: pytest.FixtureRequest
) -> None:
    result = kill_at_random(taught, seed=seed, num_kills=KILLS)
    record(result, request.config.rootpath)
    assert not result.faults, "\n".join(result.faults)
