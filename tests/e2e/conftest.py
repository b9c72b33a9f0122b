"""A GRPO project for whole runs: three problems, and a model whose answers give a signal."""

from pathlib import Path

import pytest

from tests.e2e.experiments import Taught, taught_of


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    return taught_of(tmp_path_factory)


@pytest.fixture
def grpo_project(taught: Taught, tmp_path: Path) -> Path:
    """`tmp_path` with `problems/` and `model/`; the test adds the experiment."""
    return taught.project(tmp_path)
