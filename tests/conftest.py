"""What holds for every test: one marked `gpu` needs a GPU or is skipped, and none is timed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from forge.store.layout import RunPaths
from tests import canned

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
GPU_DEVICES = (Path("/dev/nvidia0"), Path("/dev/kfd"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Called once, with all collected tests. A marathon is run by who asks for it by name."""
    if "marathon" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("marathon"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: -m marathon"))
    if any(device.exists() for device in GPU_DEVICES):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))


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
