"""The lock of a GPU: readers together, the writer alone and not starved, freed by death."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forge.errors import Stalled
from forge.process.gpu_lease import GpuLease, Window


def test_readers_share_and_keep_the_writer_out(tmp_path: Path) -> None:
    lease = GpuLease("GPU-1", folder=tmp_path)
    with lease.shared(timeout_s=1), lease.shared(timeout_s=1):
        assert not _can_write(lease)
    with lease.exclusive(timeout_s=1):
        assert not _can_read(lease)


def test_a_waiting_writer_is_before_new_readers(tmp_path: Path) -> None:
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


def test_cards_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with (
        GpuLease("GPU-1", folder=tmp_path).exclusive(timeout_s=1),
        GpuLease("GPU-2", folder=tmp_path).exclusive(timeout_s=0.01),
    ):
        pass


def test_the_end_of_a_holder_frees_the_card(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from forge.process.gpu_lease import GpuLease\n"
        "with GpuLease('GPU-1', folder=Path(sys.argv[1])).exclusive(timeout_s=1):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder, holder.stdout:
        assert holder.stdout.readline() == "held\n"
        lease = GpuLease("GPU-1", folder=tmp_path)
        assert not _can_read(lease)
        holder.kill()
        holder.wait()
        with lease.exclusive(timeout_s=5):
            pass


def test_who_waits_takes_the_card_over_and_it_is_free_afterwards(tmp_path: Path) -> None:
    lease = GpuLease("GPU-1", folder=tmp_path)
    window = Window(lease)
    could_read: list[bool] = []

    def time_one() -> None:
        with window.turn(timeout_s=10):
            could_read.append(_can_read(lease))

    with lease.shared(timeout_s=1):
        threads = [threading.Thread(target=time_one) for _ in range(4)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert could_read == [False] * 4
    assert _can_write(lease)


def test_a_turn_that_is_not_given_in_time_is_told_and_forgotten(tmp_path: Path) -> None:
    lease = GpuLease("GPU-1", folder=tmp_path)
    window = Window(lease)
    with lease.shared(timeout_s=1), pytest.raises(Stalled), window.turn(timeout_s=0.01):
        pass
    with window.turn(timeout_s=1):
        assert not _can_read(lease)
    assert _can_write(lease)


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
