"""Fixtures of the tests of outlets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forge.store.layout import RunPaths
from tests.store.storefactory import make_root

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    make_root(tmp_path / "toy-1")
    return RunPaths(tmp_path / "toy-1")
