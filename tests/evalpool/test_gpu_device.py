"""The card's identity, by which a measured time is kept, and its peaks. Needs no GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from forge.evalpool.judge.timing import device as gpu_device

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_card_has_the_peak_of_its_own_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    h100 = SimpleNamespace(major=9, minor=0, gcnArchName="")
    mi250 = SimpleNamespace(major=9, minor=0, gcnArchName="gfx90a:sramecc+:xnack-")
    monkeypatch.setattr(torch.version, "hip", None)
    assert gpu_device.FLOPS_PER_CLOCK[gpu_device.target_of(h100)["arch"]]["half"] == 4096
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert gpu_device.FLOPS_PER_CLOCK[gpu_device.target_of(mi250)["arch"]]["half"] == 1024


@pytest.mark.parametrize(
    ("arch", "units", "clock_ghz", "kind", "tflops"),
    [
        (80, 108, 1.41, "half", 312),  # A100
        (90, 132, 1.83, "tf32", 495),  # H100 SXM
        (89, 142, 2.505, "half", 364),  # RTX 6000 Ada
        ("gfx90a", 110, 1.7, "half", 191.5),  # half of an MI250X
        ("gfx942", 304, 2.1, "half", 1307.4),  # MI300X
        ("gfx942", 304, 2.1, "tf32", 653.7),
        ("gfx950", 256, 2.4, "half", 2516.6),  # MI355X
    ],
)
def test_rates_give_the_peaks_of_data_sheets(
    arch: int | str, units: int, clock_ghz: float, kind: str, tflops: float
) -> None:
    rate = gpu_device.FLOPS_PER_CLOCK[arch][kind]
    assert rate * units * clock_ghz / 1e3 == pytest.approx(tflops, rel=0.01)
