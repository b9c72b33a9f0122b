"""What holds for every test: one marked `gpu` is skipped where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

GPU_DEVICES = (Path("/dev/nvidia0"), Path("/dev/kfd"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called once, with all collected tests."""
    if any(device.exists() for device in GPU_DEVICES):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
