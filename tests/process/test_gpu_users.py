"""Processes on a GPU, and the reasons for missing GPUs, as NVML reports them."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import pytest

from forge.process import devices
from forge.process.devices import Gpu, GpuUser, Vendor, occupancies, users_of, why_hidden


def make_card(index: int = 0, **changes: Any) -> Gpu:
    facts = {"vendor": Vendor.NVIDIA, "index": index, "uuid": f"GPU-{index}a", "name": "H200"}
    return Gpu(**{**facts, "memory_bytes": 80 << 30, "free_bytes": 80 << 30, **changes})


def test_bytes_of_no_visible_process_belong_to_an_unknown_one(monkeypatch):
    assert users_of([], used_bytes=600 << 20) == (), "a driver's own"
    (unseen,) = users_of([], used_bytes=50 << 30)
    assert str(unseen) == "53.7 GB are held by processes that are not visible here"
    monkeypatch.setattr(devices, "_is_on_a_card", lambda pid: pid == os.getpid())
    seen, rest = users_of([(os.getpid(), 10 << 30), (1, 20 << 30)], used_bytes=30 << 30)
    assert seen.pid == os.getpid()
    assert str(seen).startswith(f"pid {os.getpid()} (")
    assert str(seen).endswith(") holds 10.7 GB")
    assert rest == GpuUser(memory_bytes=20 << 30)


def test_a_process_without_an_open_gpu_is_no_user():
    assert users_of([(os.getpid(), 5 << 30)], used_bytes=5 << 30)[0].pid is None


def test_each_call_queries_the_gpu_again(monkeypatch):
    class Silent(Exception):
        pass

    free = iter([70 << 30, 10 << 30])

    def memory(handle: object) -> object:
        left = next(free)
        return types.SimpleNamespace(free=left, used=(80 << 30) - left)

    nvml = types.SimpleNamespace(
        NVMLError=Silent,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    cards = [make_card()]
    assert occupancies(cards)["GPU-0a"].free_bytes == 70 << 30
    assert occupancies(cards)["GPU-0a"].users[0].memory_bytes == 70 << 30
    assert occupancies([]) == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, ""),
        ("0,1", ""),
        ("GPU-0,GPU-1", ""),
        ("1", "CUDA_VISIBLE_DEVICES = '1' leaves 1 of 2"),
        ("", "CUDA_VISIBLE_DEVICES = '' leaves 0 of 2"),
        ("7", "CUDA_VISIBLE_DEVICES names '7', which is no GPU here; it leaves 0"),
        ("GPU-", "CUDA_VISIBLE_DEVICES names 'GPU-', which is several GPUs here; it leaves 0"),
        ("1,1", "CUDA_VISIBLE_DEVICES = '1,1' leaves 0 of 2; a GPU named twice hides all"),
        ("MIG-8f", "CUDA_VISIBLE_DEVICES names MIG-8f, a slice of a GPU; forge uses whole GPUs"),
    ],
)
def test_gpus_hidden_by_the_users_variable_are_explained(value, words):
    cards = [make_card(0), make_card(1)]
    assert why_hidden(cards, value, variable="CUDA_VISIBLE_DEVICES") == words


def test_a_gpu_in_mig_mode_is_left_out_and_explained(monkeypatch):
    cut = make_card(1, is_cut=True)
    monkeypatch.setattr(devices, "_nvidia_gpus", lambda: [make_card(0), cut])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices.inventory.cache_clear()
    devices.hidden_gpus.cache_clear()
    try:
        assert [gpu.index for gpu in devices.inventory()] == [0]
        assert devices.hidden_gpus().startswith("GPU 1 is split into MIG slices")
    finally:
        devices.inventory.cache_clear()
        devices.hidden_gpus.cache_clear()
