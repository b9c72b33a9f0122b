"""Locks of GPUs: a run's claim, refused by the name of its holder, and leases, shared by readers,
exclusive and fair for the writer; death frees both.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from forge.errors import MachineError, Stalled
from forge.process.devices import Gpu, Vendor
from forge.process.gpu_locks import GpuLease, claim, claimed, holders

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


def make_card(index: int) -> Gpu:
    return Gpu(
        vendor=Vendor.NVIDIA, index=index, uuid=f"GPU-{index}", name="H200", memory_bytes=1,
        free_bytes=1,
    )  # fmt: skip


def test_a_second_run_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    with claim([make_card(0), make_card(1)], run="first", folder=tmp_path) as held:
        held.rename("first-7")
        with (
            pytest.raises(MachineError) as caught,
            claim([make_card(2), make_card(1)], run="second", folder=tmp_path),
        ):
            pass
        with claim([make_card(2)], run="third", folder=tmp_path):
            pass  # the refused run holds nothing
    assert str(caught.value) == (
        f"GPU 1 (H200, GPU-1) is used by run first-7, pid {os.getpid()}; "
        "forge run waits with --wait SECONDS"
    )


def test_holders_are_named_while_they_hold_and_no_lock_is_taken(tmp_path: Path) -> None:
    cards = [make_card(0), make_card(1)]
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
        with claim([make_card(0)], run="second", wait_s=20, say=say, folder=tmp_path):
            got.append(time.monotonic())

    with claim([make_card(0)], run="first", folder=tmp_path):
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
        claim([make_card(0)], run="first", folder=tmp_path),
        pytest.raises(MachineError, match=r"pid \d+ after 0 s$"),
        claim([make_card(0)], run="second", wait_s=0.01, folder=tmp_path),
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
            claim([make_card(0)], run="second", folder=tmp_path),
        ):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        with claim([make_card(0)], run="second", folder=tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_children_that_share_a_card_claim_it_together_and_against_others(tmp_path: Path) -> None:
    card = make_card(0)
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
