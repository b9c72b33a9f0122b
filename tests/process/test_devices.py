"""GPUs as NVML and amdsmi report them: their users, why some are missing, and a machine with 8
MI300X (no real one was available). Their locks: a run's claim, refused by the name of its holder,
and leases, shared by readers, exclusive and fair for the writer; death frees both.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from forge.config.schema import JudgeTable
from forge.errors import MachineError, Stalled
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
from forge.process.gpu_locks import GpuLease, claim, claimed, holders
from tests.gpus import make_gpu

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
    cards = [make_gpu(0), make_gpu(1)]
    assert why_hidden(cards, value, variable="CUDA_VISIBLE_DEVICES") == words


def test_a_gpu_in_mig_mode_is_left_out_and_explained(monkeypatch):
    cut = make_gpu(1, is_cut=True)
    monkeypatch.setattr(devices, "_nvidia_gpus", lambda: [make_gpu(0), cut])
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


def test_a_candidates_sandbox_has_kfd_and_render_nodes_and_no_other_device(tmp_path: Path) -> None:
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
        capacity=16, gpu=devices.inventory()[3], cores=(0, 1),
    ).env  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in judge.items():
            patch.setenv(name, value)
        for name in BLOCKING_VARIABLES:
            patch.delenv(name)
        env = root.child_environment()
    assert {**AMD, "HIP_VISIBLE_DEVICES": "3"}.items() <= env.items()


ROOT = Path(__file__).parents[2]
HOLDS = """
import sys, time
from pathlib import Path
from forge.process.devices import Gpu, Vendor
from forge.process.gpu_locks import claim

card = Gpu(vendor=Vendor.NVIDIA, index=0, uuid="GPU-0", name="H200", memory_bytes=1, free_bytes=1)
with claim([card], run="first-1", folder=Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    with claim([make_gpu(0), make_gpu(1)], run="first", folder=tmp_path) as held:
        held.rename("first-7")
        with (
            pytest.raises(MachineError) as caught,
            claim([make_gpu(2), make_gpu(1)], run="second", folder=tmp_path),
        ):
            pass
        with claim([make_gpu(2)], run="third", folder=tmp_path):
            pass  # the refused run holds nothing
    assert str(caught.value) == (
        f"GPU 1 (H200, GPU-1) is used by run first-7, pid {os.getpid()}; "
        "forge run waits with --wait SECONDS"
    )


def test_holders_are_named_while_they_hold_and_no_lock_is_taken(tmp_path: Path) -> None:
    cards = [make_gpu(0), make_gpu(1)]
    with claim(cards[:1], run="first", folder=tmp_path) as held:
        held.rename("first-7")
        expected = {"GPU-0": f"run first-7, pid {os.getpid()}"}
        assert holders(cards, folder=tmp_path) == expected
        with claim(cards[1:], run="second", folder=tmp_path):
            assert set(holders(cards, folder=tmp_path)) == {"GPU-0", "GPU-1"}
            assert claimed(cards, folder=tmp_path) == {"GPU-0", "GPU-1"}
    assert holders(cards, folder=tmp_path) == {}
    assert claimed(cards, folder=tmp_path) == frozenset()


def test_a_waiting_run_names_the_holder_once_and_gets_the_freed_gpu(tmp_path: Path) -> None:
    said: list[str] = []
    heard = threading.Event()

    def say(words: str) -> None:
        said.append(words)
        heard.set()

    got: list[float] = []

    def wait() -> None:
        with claim([make_gpu(0)], run="second", wait_s=20, say=say, folder=tmp_path):
            got.append(time.monotonic())

    with claim([make_gpu(0)], run="first", folder=tmp_path):
        thread = threading.Thread(target=wait)
        thread.start()
        assert heard.wait(10)
        freed = time.monotonic()
    thread.join(20)
    assert got[0] >= freed
    assert len(said) == 1
    assert said[0].endswith("waiting up to 20 s")


def test_a_wait_ends_at_its_limit(tmp_path: Path) -> None:
    with (
        claim([make_gpu(0)], run="first", folder=tmp_path),
        pytest.raises(MachineError, match=r"pid \d+ after 0 s$"),
        claim([make_gpu(0)], run="second", wait_s=0.01, folder=tmp_path),
    ):
        pass


def test_a_killed_run_frees_its_gpus(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(MachineError, match=f"run first-1, pid {holder.pid}"),
            claim([make_gpu(0)], run="second", folder=tmp_path),
        ):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        with claim([make_gpu(0)], run="second", folder=tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_children_that_share_a_card_claim_it_together_and_against_others(tmp_path: Path) -> None:
    card = make_gpu(0)
    with (
        claim([card], run="one", folder=tmp_path, is_shared=True),
        claim([card], run="one", folder=tmp_path, is_shared=True),
    ):
        assert claimed([card], folder=tmp_path) == {"GPU-0"}
        with (
            pytest.raises(MachineError, match="used by run one"),
            claim([card], run="two", folder=tmp_path),
        ):
            pass
    with (
        claim([card], run="two", folder=tmp_path),
        pytest.raises(MachineError, match="used by run two"),
        claim([card], run="one", folder=tmp_path, is_shared=True),
    ):
        pass


def test_readers_share_the_gpu_and_block_the_writer(tmp_path: Path) -> None:
    lease = GpuLease("GPU-1", folder=tmp_path)
    with lease.shared(timeout_s=1), lease.shared(timeout_s=1):
        assert not _can_write(lease)
    with lease.exclusive(timeout_s=1):
        assert not _can_read(lease)


def test_a_waiting_writer_precedes_new_readers(tmp_path: Path) -> None:
    lease = GpuLease("GPU-1", folder=tmp_path)
    order: list[str] = []
    waits = threading.Event()

    def write() -> None:
        waits.set()
        with lease.exclusive(timeout_s=10):
            order.append("writer")

    def read() -> None:
        with lease.shared(timeout_s=10):
            order.append("reader")

    with lease.shared(timeout_s=1):
        writer = threading.Thread(target=write)
        writer.start()
        waits.wait()
        while _can_read(lease):  # until the writer has the gate
            pass
        reader = threading.Thread(target=read)
        reader.start()
    writer.join()
    reader.join()
    assert order == ["writer", "reader"]


def test_an_unwritable_folder_is_named_in_the_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(MachineError, match=f"{missing}.*No such file"):
        GpuLease("GPU-1", folder=missing)


def _can_read(lease: GpuLease) -> bool:
    try:
        with lease.shared(timeout_s=0.01):
            return True
    except Stalled:
        return False


def _can_write(lease: GpuLease) -> bool:
    try:
        with lease.exclusive(timeout_s=0.01):
            return True
    except Stalled:
        return False
