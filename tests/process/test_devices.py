"""GPUs as NVML and amdsmi report them: their users, why some are missing, and a machine with 8
MI300X (no real one was available).
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forge.config.schema import JudgeTable
from forge.evalpool.judge.sandbox import root
from forge.evalpool.keeper import judge_spec
from forge.process import devices
from forge.process.devices import (
    BLOCKING_VARIABLES,
    Gpu,
    GpuUser,
    Vendor,
    occupancies,
    users_of,
    why_hidden,
)
from forge.process.environment import child_env

AMD = {
    "AMD_LOG_LEVEL": "0",
    "GPU_MAX_HW_QUEUES": "1",
    "HIP_ENABLE_COREDUMP": "0",
    "HIP_PLATFORM": "amd",
    "HSA_ENABLE_COREDUMP": "0",
    "HSA_ENABLE_SDMA": "0",
    "PYTORCH_ROCM_ARCH": "gfx942",
    "ROCM_DISABLE_CRASH_DUMP": "1",
}
"""Variables of every child on an AMD GPU, besides those that list its GPUs."""
OF_DEVICES = ("CUDA", "GGML_VK", "HIP", "HSA", "ROC", "AMD", "GPU_", "PYTORCH_ROCM")


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


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, ""),
        ("0,1", ""),
        ("GPU-0,GPU-1", ""),
        ("1", "CUDA_VISIBLE_DEVICES = '1' leaves 1 of 2"),
        ("", "CUDA_VISIBLE_DEVICES = '' leaves 0 of 2"),
        ("7", "CUDA_VISIBLE_DEVICES = '7' leaves 0 of 2; '7' is not one whole GPU here"),
        ("GPU-", "CUDA_VISIBLE_DEVICES = 'GPU-' leaves 0 of 2; 'GPU-' is not one whole GPU here"),
        ("1,1", "CUDA_VISIBLE_DEVICES = '1,1' leaves 0 of 2; a GPU named twice hides all"),
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


def make_amdsmi(*, hip_order: Sequence[int] = range(8)) -> SimpleNamespace:
    """Answers to forge's calls as in amdsmi's documentation. Sizes are in MB."""
    return SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: list(range(8)),
        amdsmi_get_gpu_asic_info=lambda handle: {
            "market_name": "AMD Instinct MI300X",
            "target_graphics_version": "gfx942",
        },
        amdsmi_get_gpu_vram_usage=lambda handle: {"vram_total": 196_592, "vram_used": 283},
        amdsmi_get_gpu_device_uuid=lambda handle: f"{handle:02x}ff74a1-0000-1000-80ab-000000000000",
        amdsmi_get_gpu_enumeration_info=lambda handle: {"hip_id": hip_order[handle]},
    )


def uuid_of(number: int) -> str:
    return f"{number:02x}ff74a1-0000-1000-80ab-000000000000"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """/dev/kfd, amdsmi, and a user's environment with misleading variables."""
    kfd = tmp_path / "kfd"
    kfd.touch()
    monkeypatch.setattr(devices, "KFD", kfd)
    monkeypatch.setitem(sys.modules, "amdsmi", make_amdsmi())
    monkeypatch.setattr(devices, "_nvidia_gpus", list)
    for name in devices.VISIBILITY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in BLOCKING_VARIABLES:
        monkeypatch.setenv(name, "1")
    devices.inventory.cache_clear()
    yield monkeypatch
    devices.inventory.cache_clear()


def of_devices(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(OF_DEVICES)}


def seeing(indices: str) -> dict[str, str]:
    return {"HIP_VISIBLE_DEVICES": indices, "GGML_VK_VISIBLE_DEVICES": indices}


@pytest.mark.usefixtures("machine")
def test_eight_gpus_are_found_with_memory_and_architecture() -> None:
    cards = devices.inventory()
    assert [card.index for card in cards] == list(range(8))
    assert cards[5] == Gpu(
        vendor=Vendor.AMD,
        index=5,
        uuid=uuid_of(5),
        name="AMD Instinct MI300X",
        memory_bytes=196_592 << 20,
        free_bytes=(196_592 - 283) << 20,
        arch="gfx942",
    )


@pytest.mark.usefixtures("machine")
def test_used_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = devices.inventory()
    assert occupancies(cards)[cards[5].uuid].users == (), "a driver's own 283 MB"
    busy = [replace(card, free_bytes=100 << 30) for card in cards]
    monkeypatch.setattr("forge.process.devices.amd_gpus", lambda: busy)
    found = occupancies(cards)[cards[5].uuid]
    assert found.free_bytes == 100 << 30
    assert [user.memory_bytes for user in found.users] == [(196_592 << 20) - (100 << 30)]


@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_gpus_that_the_user_allows_are_divided_and_no_others_used(
    machine: pytest.MonkeyPatch, variable: str
) -> None:
    machine.setenv(variable, "6,7")
    cards = devices.inventory()
    assert [card.index for card in cards] == [6, 7]
    env = of_devices(child_env(threads=1, gpus=[cards[1].uuid]))
    assert env == {**AMD, **seeing("7")}


def test_without_amdsmi_gpus_are_unused_with_a_warning(
    machine: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine.setitem(sys.modules, "amdsmi", None)
    assert devices.inventory() == ()
    assert "there is an AMD GPU, but amdsmi is not installed" in caplog.text


def test_a_candidates_sandbox_has_kfd_and_render_nodes_and_no_other_device(
    tmp_path: Path,
) -> None:
    for name in ("kfd", "null", "dri/card0", *(f"dri/renderD{128 + i}" for i in range(8))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found, _ = root.find_gpu_files(minor=None, dev=tmp_path)
    assert found == ["kfd", *(f"dri/renderD{128 + i}" for i in range(8))]


@pytest.mark.usefixtures("machine")
def test_a_candidate_gets_the_judges_gpu_settings(tmp_path: Path) -> None:
    """The zygote passes the judge's environment on."""
    judge = judge_spec(
        "judge-3", table=JudgeTable(), socket_dir=tmp_path, log_dir=tmp_path,
        threads=1, capacity=16, gpu=devices.inventory()[3], cores=(0, 1),
    ).env  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in judge.items():
            patch.setenv(name, value)
        for name in BLOCKING_VARIABLES:
            patch.delenv(name)
        env = root.child_environment()
    assert {**AMD, "HIP_VISIBLE_DEVICES": "3"}.items() <= env.items()
