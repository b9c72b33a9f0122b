"""GPU memory that two processes share: allocated by one, handed over as a file descriptor.

Called by the judge (which owns every block) and, handed in by the zygote, by oracles. Virtual
memory calls, since legacy IPC handles fail across uids and expose the whole block they lie in.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

import torch

from forge.evalpool.judge.driver.driver import DEFAULT_STREAM, Driver, DriverError

ROOM_BYTES = 1 << 30
"""Left free beside a new block: for a process's context and its first tensors."""
ROOM_TIMEOUT_S = 10.0
"""Short: what would free the card may wait for us to leave it."""
ROOM_PAUSE_S = 0.05


@cache
def torch_driver() -> Driver:
    """The driver of this process's torch. Raises Unsupported."""
    return Driver("hip" if torch.version.hip else "cuda")


@dataclass(slots=True, kw_only=True)
class Block:
    """Device memory mapped into this process. `fd` is ours to close by `close`, -1 where opened.
    Each method may raise DriverError: this context may be broken."""

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
        place = (self.address + offset, tensor.data_ptr(), tensor.nbytes)
        torch_driver().copy(*place, stream=DEFAULT_STREAM)

    def fill(self, offset: int, num_bytes: int, byte: int) -> None:
        """Writes a byte over a part of the block, in the default stream."""
        torch_driver().fill(self.address + offset, num_bytes, byte, stream=DEFAULT_STREAM)

    def close(self) -> None:
        """Unmaps it; the memory is free once every process has."""
        if not self.address:
            return
        torch.cuda.synchronize()  # unmapping does not wait for who still reads or writes it
        driver = torch_driver()
        driver.unmap(self.address, self.num_bytes)
        driver.free_range(self.address, self.num_bytes)
        driver.release_memory(self.handle)
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
    """At least `num_bytes` of shareable memory. Waits a while for room. Raises DriverError."""
    torch.cuda.current_stream()  # the context is torch's
    _wait_for_room(num_bytes)
    driver, device = torch_driver(), torch.cuda.current_device()
    unit = driver.granularity(device, is_shared=True)
    size = -(-max(num_bytes, 1) // unit) * unit
    handle = driver.create_memory(size, device=device, is_shared=True)
    with ExitStack() as undo:
        undo.callback(driver.release_memory, handle)
        fd = driver.export_memory(handle)
        undo.pop_all()
    return _map(handle, size, fd=fd)


def open_block(fd: int, num_bytes: int) -> Block:
    """A block that another process made, from its descriptor, which stays the caller's."""
    torch.zeros(1, device="cuda")  # the context is torch's, with its first kernel loaded
    return _map(torch_driver().import_memory(fd), num_bytes, fd=-1)


def _wait_for_room(num_bytes: int) -> None:
    deadline = time.monotonic() + ROOM_TIMEOUT_S
    needed = num_bytes + ROOM_BYTES
    if torch.cuda.mem_get_info()[0] < needed:
        torch.cuda.empty_cache()  # what torch keeps for this process is not in use
    while (free := torch.cuda.mem_get_info()[0]) < needed:
        if time.monotonic() >= deadline:
            raise DriverError(
                f"the card has {free >> 20} MB free where {needed >> 20} MB are needed: others are "
                f"on it"
            )
        time.sleep(ROOM_PAUSE_S)


def _map(handle: int, size: int, *, fd: int) -> Block:
    """Takes the handle and the descriptor over, also where it fails."""
    driver = torch_driver()
    with ExitStack() as undo:
        if fd >= 0:
            undo.callback(os.close, fd)
        undo.callback(driver.release_memory, handle)
        address = driver.reserve(size)
        undo.callback(driver.free_range, address, size)
        driver.map(address, size, handle, device=torch.cuda.current_device())
        undo.pop_all()
    return Block(address=address, num_bytes=size, fd=fd, handle=handle)
