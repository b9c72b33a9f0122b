"""A driver's refusals leave nothing behind and are named. The library is ours: no GPU."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from forge.evalpool.judge.driver import gpu_memory
from forge.evalpool.judge.driver.driver import OUT_OF_MEMORY, Driver, DriverError
from forge.evalpool.judge.driver.gpu_memory import ROOM_BYTES, Block

GRANULARITY = 2 << 20


class Library:
    """Says what it was asked for, in order; fails where asked to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.codes: dict[str, int] = {}
        self.fd = -1

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name == "cuGetErrorName":
                return 0
            short = name.removeprefix("cu").removeprefix("hip")
            self.asked.append(short)
            if short == "MemGetAllocationGranularity":
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_size_t))[0] = GRANULARITY
            if short == "MemExportToShareableHandle":
                self.fd = os.open("/dev/null", os.O_RDONLY)
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_int))[0] = self.fd
            if short == "MemAddressReserve":
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_ulonglong))[0] = 0x1000
            return self.codes.get(short, 0)

        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(gpu_memory, "torch_driver", lambda: Driver("cuda", made))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (64 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: made.asked.append("synchronize"))
    return made


def test_pending_work_ends_before_its_memory_does(library: Library) -> None:
    block = gpu_memory.create_block(1)
    assert (block.num_bytes, block.fd) == (GRANULARITY, library.fd)
    library.asked.clear()
    block.close()
    block.close()
    assert library.asked == ["synchronize", "MemUnmap", "MemAddressFree", "MemRelease"]
    assert not Path(f"/proc/self/fd/{library.fd}").exists()


@pytest.mark.parametrize(
    ("failing", "undone"),
    [
        ("MemAddressReserve", ["MemRelease"]),
        ("MemMap", ["MemAddressFree", "MemRelease"]),
        ("MemSetAccess", ["MemUnmap", "MemAddressFree", "MemRelease"]),
    ],
)
def test_a_block_that_cannot_be_mapped_is_given_back(
    failing: str, undone: list[str], library: Library
) -> None:
    library.codes[failing] = OUT_OF_MEMORY
    with pytest.raises(DriverError):
        gpu_memory.create_block(1)
    assert library.asked[library.asked.index(failing) + 1 :] == undone
    assert not Path(f"/proc/self/fd/{library.fd}").exists()


def test_a_block_waits_for_room_and_no_longer_than_it_may(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([0, 0, 0, ROOM_BYTES + 100])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (next(free), 80 << 30))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(gpu_memory, "ROOM_PAUSE_S", 0.0)
    assert isinstance(gpu_memory.create_block(100), Block)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 80 << 30))
    monkeypatch.setattr(gpu_memory, "ROOM_TIMEOUT_S", 0.0)
    with pytest.raises(DriverError, match="0 MB free where 1024 MB are needed") as raised:
        gpu_memory.create_block(100)
    assert raised.value.code == OUT_OF_MEMORY
