"""The generator's problems with the default keys, which take seconds to make."""

import pytest

from forge.config.schema import ProblemsTable
from forge.data.generator import generate_problems
from forge.records import Problem


@pytest.fixture(scope="session")
def generated() -> list[Problem]:
    return generate_problems(ProblemsTable(), seed=0)
