"""The generator's problems with the default keys, which take seconds to make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forge.config.schema import ProblemsTable
from forge.data.generator import generate_problems

if TYPE_CHECKING:
    from forge.records import Problem


@pytest.fixture(scope="session")
def generated() -> list[Problem]:
    return generate_problems(ProblemsTable(), seed=0)
