"""What a measured time is kept by. Needs no GPU."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.timing import device as gpu_device

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Nvml:
    """Stands for pynvml."""

    def __init__(self, version: str) -> None:
        self.version, self.num_open = version, 0

    def nvmlInit(self) -> None:
        self.num_open += 1

    def nvmlShutdown(self) -> None:
        self.num_open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        assert self.num_open == 1
        return self.version


def test_an_update_of_the_driver_or_of_cuda_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for version, cuda in (("570.1", "12.9"), ("580.2", "12.9"), ("580.2", "13.0")):
        nvml = Nvml(version)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        said.append(gpu_device.driver())
        assert nvml.num_open == 0
    assert said == ["570.1 cuda 12.9", "580.2 cuda 12.9", "580.2 cuda 13.0"]


def test_an_amd_driver_is_the_modules_or_the_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(gpu_device, "AMD_DRIVER", tmp_path / "version")
    assert gpu_device.driver().endswith(" hip 7.0")
    (tmp_path / "version").write_text("6.14.14\n")
    assert gpu_device.driver() == "6.14.14 hip 7.0"
