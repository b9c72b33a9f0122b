"""Rules for every test: skips, the order and grouping of a parallel run, and tests that run alone.

A parallel run (pytest-xdist, `make test`) keeps the tests of a file on one worker, because module
fixtures start judges and engines. Tests of whole runs are distributed one by one, and first,
because they take longest. A test marked `alone` runs while no other test does: see `alone.py`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from forge.store.layout import RunPaths
from tests import canned
from tests.alone import take_turn

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
BY_NAME = ("marathon", "chaos")
"""Markers of tests that run only where `-m` names them."""
GPU_DEVICES = (Path("/dev/nvidia0"), Path("/dev/kfd"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what was not asked for or cannot run here; orders and groups the rest."""
    for marker in BY_NAME:
        if marker not in config.option.markexpr:
            for item in items:
                if item.get_closest_marker(marker):
                    item.add_marker(pytest.mark.skip(reason=f"takes minutes: -m {marker}"))
    if not any(device.exists() for device in GPU_DEVICES):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
    items.sort(key=_start_order)
    for item in items:
        if not _is_distributed_alone(item):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Waits for the test's turn, outside its timeout."""
    with take_turn(item.config, is_alone=item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_unconfigure() -> None:
    """Closes two files that llama_cpp opens at import and leaves open."""
    if module := sys.modules.get("llama_cpp._utils"):
        module.outnull_file.close()
        module.errnull_file.close()


def _is_distributed_alone(item: pytest.Item) -> bool:
    """True for a test without module fixtures worth sharing."""
    return item.get_closest_marker("e2e") is not None


def _start_order(item: pytest.Item) -> int:
    """0 for the tests that take longest; a stable sort keeps files together."""
    return 0 if item.get_closest_marker("e2e") else 1


@pytest.fixture(scope="session")
def canned_template(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """The canned run, unpacked once; nobody may change it."""
    return canned.unpack(tmp_path_factory.mktemp("canned"))


@pytest.fixture
def canned_run(canned_template: RunPaths, tmp_path: Path) -> RunPaths:
    """A finished quickstart of the test's own: `<tmp_path>/runs/quickstart-1` (tests/canned)."""
    root = tmp_path / "runs" / canned_template.name
    shutil.copytree(canned_template.root, root, symlinks=True)
    return RunPaths(root)
