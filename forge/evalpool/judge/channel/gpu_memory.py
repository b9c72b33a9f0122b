"""GPU memory that two processes share: allocated by one, handed over as a file descriptor.

Called by the judge (which owns every block) and, handed in by the zygote, by oracles and runners.
CUDA's virtual memory calls through ctypes, by their HIP names on AMD (the structures and numbers
are the same): legacy IPC handles fail across uids and expose the whole block they lie in. Not tried
on AMD: no card was at hand.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from forge.evalpool.judge.channel.gpu_library import open_library

PINNED, ON_DEVICE, POSIX_FD, READ_WRITE, MINIMUM_GRANULARITY = 1, 1, 1, 3, 0
SUFFIXES = {"MemcpyDtoDAsync": "_v2"}
"""CUDA's versions of calls that have several."""
OUT_OF_MEMORY = 2
"""Both drivers' code."""
ROOM_BYTES = 1 << 30
"""Left free beside a new block: for the context of the process that it is for, and its first
tensors."""
ROOM_TIMEOUT_S = 10.0
"""Short: what would free the card may wait for us to leave it."""
ROOM_PAUSE_S = 0.05


class GpuMemoryError(Exception):
    """There is no room on the card; else the driver refused, and this context may be broken."""

    def __init__(self, message: str, *, code: int = OUT_OF_MEMORY) -> None:
        super().__init__(message)
        self.is_out_of_memory = code == OUT_OF_MEMORY


class _Location(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("index", ctypes.c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int),
        ("handle_kinds", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


@dataclass(slots=True, kw_only=True)
class Block:
    """Device memory mapped into this process. `fd` is ours to close by `close`, -1 where opened."""

    address: int
    num_bytes: int
    fd: int
    handle: int

    def bytes(self) -> torch.Tensor:
        """[num_bytes] uint8, all of it. Valid until `close`."""
        return torch.as_tensor(DeviceBytes(self.address, self.num_bytes), device="cuda")

    def put(self, offset: int, tensor: torch.Tensor) -> None:
        """Copies a contiguous tensor of the card to a place in the block, in the default stream.
        By the driver: torch would hold other threads up for longer."""
        source, num_bytes = _size(tensor.data_ptr()), _size(tensor.nbytes)
        _call("MemcpyDtoDAsync", _size(self.address + offset), source, num_bytes, _size(0))

    def fill(self, offset: int, num_bytes: int, byte: int) -> None:
        """Writes a byte over a part of the block, in the default stream."""
        target = _size(self.address + offset)
        _call("MemsetD8Async", target, ctypes.c_ubyte(byte), _size(num_bytes), _size(0))

    def close(self) -> None:
        """Unmaps it; the memory is free once every process has."""
        if not self.address:
            return
        torch.cuda.synchronize()  # unmapping does not wait for who still reads or writes it
        _call("MemUnmap", _size(self.address), _size(self.num_bytes))
        _call("MemAddressFree", _size(self.address), _size(self.num_bytes))
        _call("MemRelease", _size(self.handle))
        if self.fd >= 0:
            os.close(self.fd)
        self.address = 0


class DeviceBytes:
    """Device memory that torch wraps without a copy."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def create_block(num_bytes: int) -> Block:
    """At least `num_bytes` of the current device's memory, shareable. Waits a while for room.
    Raises GpuMemoryError."""
    torch.cuda.current_stream()  # the context is torch's
    _wait_for_room(num_bytes)
    properties = _properties()
    granularity = ctypes.c_size_t()
    _call(
        "MemGetAllocationGranularity",
        ctypes.byref(granularity),
        ctypes.byref(properties),
        ctypes.c_int(MINIMUM_GRANULARITY),
    )
    size = -(-max(num_bytes, 1) // granularity.value) * granularity.value
    handle = ctypes.c_ulonglong()
    _call("MemCreate", ctypes.byref(handle), _size(size), ctypes.byref(properties), _size(0))
    try:
        fd = ctypes.c_int(-1)
        exporting = (ctypes.byref(fd), handle, ctypes.c_int(POSIX_FD), _size(0))
        _call("MemExportToShareableHandle", *exporting)
    except GpuMemoryError:
        _call("MemRelease", handle)
        raise
    return _map(handle.value, size, fd=fd.value)


def make_context() -> None:
    """torch's, on the current device, with its first kernel loaded."""
    torch.zeros(1, device="cuda")


def open_block(fd: int, num_bytes: int) -> Block:
    """A block that another process made, from its descriptor, which stays the caller's."""
    make_context()
    handle = ctypes.c_ulonglong()
    importing = (ctypes.byref(handle), ctypes.c_void_p(fd), ctypes.c_int(POSIX_FD))
    _call("MemImportFromShareableHandle", *importing)
    return _map(handle.value, num_bytes, fd=-1)


def _wait_for_room(num_bytes: int) -> None:
    deadline = time.monotonic() + ROOM_TIMEOUT_S
    needed = num_bytes + ROOM_BYTES
    if torch.cuda.mem_get_info()[0] < needed:
        torch.cuda.empty_cache()  # what torch keeps for this process is not in use
    while (free := torch.cuda.mem_get_info()[0]) < needed:
        if time.monotonic() >= deadline:
            raise GpuMemoryError(
                f"the card has {free >> 20} MB free where {needed >> 20} MB are needed: others are "
                f"on it"
            )
        time.sleep(ROOM_PAUSE_S)


def _map(handle: int, size: int, *, fd: int) -> Block:
    """Takes the handle and the descriptor over, also where it fails."""
    address = ctypes.c_ulonglong()
    with ExitStack() as undo:
        if fd >= 0:
            undo.callback(os.close, fd)
        undo.callback(_call, "MemRelease", _size(handle))
        _call("MemAddressReserve", ctypes.byref(address), _size(size), _size(0), _size(0), _size(0))
        undo.callback(_call, "MemAddressFree", address, _size(size))
        _call("MemMap", address, _size(size), _size(0), _size(handle), _size(0))
        undo.callback(_call, "MemUnmap", address, _size(size))
        access = _Access(location=_location(), flags=READ_WRITE)
        _call("MemSetAccess", address, _size(size), ctypes.byref(access), _size(1))
        undo.pop_all()
    return Block(address=address.value, num_bytes=size, fd=fd, handle=handle)


def _properties() -> _Properties:
    return _Properties(kind=PINNED, handle_kinds=POSIX_FD, location=_location())


def _location() -> _Location:
    return _Location(kind=ON_DEVICE, index=torch.cuda.current_device())


def _size(value: int) -> ctypes.c_ulonglong:
    return ctypes.c_ulonglong(value)


def _call(name: str, *arguments: Any) -> None:
    prefix = "hip" if torch.version.hip else "cu"
    suffix = "" if torch.version.hip else SUFFIXES.get(name, "")
    code = getattr(_library(), f"{prefix}{name}{suffix}")(*arguments)
    if code:
        raise GpuMemoryError(f"{prefix}{name} failed: {_words(code)}", code=code)


def _words(code: int) -> str:
    if torch.version.hip:
        return f"HIP error {code}"
    text = ctypes.c_char_p()
    _library().cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
    return f"{(text.value or b'').decode()} ({code})"


@cache
def _library() -> ctypes.CDLL:
    return open_library("hip" if torch.version.hip else "cuda")
