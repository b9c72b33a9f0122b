"""Fixtures of the tests of outlets."""

from pathlib import Path

import pytest

from forge.store.layout import RunPaths
from tests.store.storefactory import make_root


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    make_root(tmp_path / "toy-1")
    return RunPaths(tmp_path / "toy-1")
