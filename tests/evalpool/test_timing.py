"""Times of calls and their interval, baselines that are kept, and the device that is asked."""

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from forge.evalpool.judge.timing import device as gpu_device
from forge.evalpool.judge.timing.baseline import (
    RESOLUTION_US,
    Baseline,
    BaselineTimes,
    Time,
    speedup,
)


def samples(center: float, width: float) -> Time:
    return Time.of(tuple(np.random.default_rng(0).normal(center, width, 50)))


def test_a_time_is_the_median_of_its_calls() -> None:
    found = Time.of((4.0, 4.0, 900.0, 5.0, 4.5))
    assert (found.us, found.spread_us) == (4.5, 1.0)
    with pytest.raises(ValueError, match="no samples"):
        Time.of(())


def test_no_time_is_shorter_than_an_event_can_show() -> None:
    found = Time.of((-0.5, 0.0, 0.1))
    assert (found.us, min(found.samples_us)) == (RESOLUTION_US, RESOLUTION_US)
    ratio = speedup(found, found, min_us=100, rng=np.random.default_rng(1))
    assert 0 < ratio.low < ratio.ratio == 1


def test_the_interval_widens_with_noise_and_ends_below_the_ratio() -> None:
    rng = np.random.default_rng(1)
    quiet = speedup(samples(200, 1), samples(400, 1), min_us=100, rng=rng)
    noisy = speedup(samples(200, 40), samples(400, 80), min_us=100, rng=rng)
    assert quiet.ratio == pytest.approx(2.0, rel=0.01)
    assert quiet.low == pytest.approx(2.0, rel=0.01)
    assert noisy.low < 0.97 * noisy.ratio


ONE = Baseline(gpu_us=(150.0, 151.0, 152.0), probe_us=100.0)


def test_a_baseline_is_found_by_another_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    none = MagicMock()
    first, second = (
        BaselineTimes(none, device=none, harness="", shared=none, alone=none) for _ in range(2)
    )
    assert second._read("a") is None
    first._keep("a", ONE)
    assert second._read("a") == ONE
    second._keep("a", Baseline(gpu_us=(1.0,), probe_us=2.0))
    assert first._read("a") != ONE
    (file,) = tmp_path.rglob("*.json")
    file.write_text('{"gpu_us": 1')
    assert first._read("a") is None


def test_a_card_that_runs_slower_than_then_is_another_card() -> None:
    assert ONE.is_current(102.0)
    assert not ONE.is_current(106.0)
    assert not ONE.is_current(90.0)


def test_a_baseline_that_jumps_is_not_steady() -> None:
    assert ONE.is_steady()
    assert Baseline(gpu_us=(5.0, 5.5, 6.0, 5.2), probe_us=1.0).is_steady()
    assert not Baseline(gpu_us=(150.0, 150.0, 200.0, 210.0), probe_us=1.0).is_steady()


def test_an_update_of_the_driver_or_of_cuda_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for version, cuda in (("570.1", "12.9"), ("580.2", "12.9"), ("580.2", "13.0")):
        nvml = MagicMock()
        nvml.nvmlSystemGetDriverVersion.return_value = version
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        said.append(gpu_device.driver())
        nvml.nvmlShutdown.assert_called_once()
    assert said == ["570.1 cuda 12.9", "580.2 cuda 12.9", "580.2 cuda 13.0"]


@pytest.mark.parametrize(
    ("name", "hip", "mhz", "bits", "gbps"),
    [
        ("AMD Instinct MI300X", "6.3", 1300, 8192, 5300),
        ("AMD Instinct MI999", "6.3", 1300, 8192, 0),
        ("NVIDIA H100 80GB HBM3", None, 2619, 5120, 3352),
    ],
)
def test_the_memory_rate_is_the_data_sheets(
    monkeypatch: pytest.MonkeyPatch, name: str, hip: str | None, mhz: int, bits: int, gbps: float
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    card = SimpleNamespace(name=name, memory_clock_rate=mhz * 1000, memory_bus_width=bits)
    assert gpu_device.peak_gbps(card) == pytest.approx(gbps, rel=0.001)
