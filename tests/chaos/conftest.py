"""The taught models of a session."""

import pytest

from tests.e2e.experiments import Taught, taught_of


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    return taught_of(tmp_path_factory)
