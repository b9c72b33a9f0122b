"""What holds for every test: one marked `gpu` needs a GPU or is skipped, and none is timed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
GPU_DEVICES = (Path("/dev/nvidia0"), Path("/dev/kfd"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called once, with all collected tests."""
    if any(device.exists() for device in GPU_DEVICES):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
