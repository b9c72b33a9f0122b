"""The lock of a GPU: shared by readers, exclusive and fair for the writer, freed by death."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from forge.errors import MachineError, Stalled
from forge.process.gpu_locks import GpuLease


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


def test_gpus_are_locked_independently(tmp_path: Path) -> None:
    with (
        GpuLease("GPU-1", folder=tmp_path).exclusive(timeout_s=1),
        GpuLease("GPU-2", folder=tmp_path).exclusive(timeout_s=0.01),
    ):
        pass


def test_the_end_of_a_holder_frees_the_gpu(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from forge.process.gpu_locks import GpuLease\n"
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


def test_waiting_threads_of_one_process_poll_once_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, other = (GpuLease("GPU-1", folder=tmp_path) for _ in range(2))
    polling: set[int] = set()
    others_gave_up = threading.Semaphore(0)
    flock = fcntl.flock

    def counted(fd: int, kind: int) -> None:
        polling.add(threading.get_ident())
        flock(fd, kind)

    def slept(_: float) -> None:
        assert all(others_gave_up.acquire(timeout=5) for _ in range(7))

    def read(one: GpuLease) -> None:
        with pytest.raises(Stalled), one.shared(timeout_s=0.02):
            pass
        others_gave_up.release()

    with lease.exclusive(timeout_s=1):
        monkeypatch.setattr(fcntl, "flock", counted)
        monkeypatch.setattr(time, "sleep", slept)
        threads = [threading.Thread(target=read, args=(one,)) for one in [lease, other] * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(polling) == 1


def test_an_unwritable_folder_is_named_in_the_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(MachineError, match=f"{missing}.*No such file"):
        GpuLease("GPU-1", folder=missing)


def test_a_lock_in_use_gets_a_new_time_stamp(tmp_path: Path) -> None:
    lease = GpuLease("GPU-1", folder=tmp_path)
    for file in tmp_path.iterdir():
        os.utime(file, (0, 0))
    with lease.shared(timeout_s=1):
        assert all(file.stat().st_mtime > 0 for file in tmp_path.iterdir())


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
