"""Virtual memory: physical memory, ranges of addresses, and the mapping of one to the other.

The methods are those of `Driver`; `arena.py` maps a program's buffers by them.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from ctypes import byref, c_int, c_size_t, c_ulonglong, c_void_p

from forge.evalpool.judge.execute.gpu.driver.calls import (
    Access,
    Calls,
    DriverError,
    Location,
    MemoryProperties,
)

USUAL_ADDRESSES = range(0x7C00_0000_0000, 0x7E00_0000_0000)
"""Addresses below those of a process's libraries and stacks, where a driver maps memory."""
ADDRESS_STEP, NUM_PLACES_TRIED = 32 << 20, 4
PINNED, ON_DEVICE, POSIX_FD, READ_WRITE, MINIMUM_GRANULARITY = 1, 1, 1, 3, 0


class RangeCalls(Calls):
    """Calls for virtual memory."""

    def granularity(self, device: int) -> int:
        """Bytes of the smallest unit of physical memory."""
        properties = _properties(device)
        size = c_size_t()
        self.call("memory_granularity", byref(size), byref(properties), c_int(MINIMUM_GRANULARITY))
        return size.value

    def create_memory(self, num_bytes: int, *, device: int) -> int:
        """Handle of physical memory, not mapped anywhere."""
        properties = _properties(device)
        handle = c_ulonglong()
        self.call(
            "memory_create", byref(handle), c_size_t(num_bytes), byref(properties), c_ulonglong(0)
        )
        return handle.value

    def import_memory(self, fd: int) -> int:
        """Handle of memory that another process exported as a descriptor."""
        handle = c_ulonglong()
        self.call("memory_import", byref(handle), c_void_p(fd), c_int(POSIX_FD))
        return handle.value

    def release_memory(self, handle: int) -> None:
        """Releases a handle of memory; what is mapped stays until it is unmapped."""
        self.call("memory_release", c_ulonglong(handle))

    def reserve(self, num_bytes: int, *, at: int = 0) -> int:
        """Address of a range that nothing is mapped to: `at`, if the driver can give it."""
        address = c_ulonglong()
        size, alignment = c_size_t(num_bytes), c_size_t(0)
        self.call(
            "memory_reserve", byref(address), size, alignment, c_ulonglong(at), c_ulonglong(0)
        )
        return address.value

    def reserve_usual(self, num_bytes: int) -> int:
        """The same, at a random address among those where a process usually has memory of the card:
        the driver's own choice for reserved ranges is much lower, by which a kernel could know
        them."""
        for _ in range(NUM_PLACES_TRIED):
            at = USUAL_ADDRESSES.start + secrets.randbelow(len(USUAL_ADDRESSES))
            with suppress(DriverError):
                found = self.reserve(num_bytes, at=at // ADDRESS_STEP * ADDRESS_STEP)
                if found in USUAL_ADDRESSES:
                    return found
                self.free_range(found, num_bytes)
        return self.reserve(num_bytes)

    def free_range(self, address: int, num_bytes: int) -> None:
        """Frees a reserved range of addresses."""
        self.call("memory_free", c_ulonglong(address), c_size_t(num_bytes))

    def map(self, address: int, num_bytes: int, handle: int, *, device: int) -> None:
        """Maps all of a handle's memory, for reading and writing."""
        self.call(
            "memory_map",
            c_ulonglong(address),
            c_size_t(num_bytes),
            c_size_t(0),
            c_ulonglong(handle),
            c_ulonglong(0),
        )
        access = Access(location=Location(kind=ON_DEVICE, index=device), flags=READ_WRITE)
        try:
            self.call(
                "memory_access",
                c_ulonglong(address),
                c_size_t(num_bytes),
                byref(access),
                c_size_t(1),
            )
        except DriverError:
            self.unmap(address, num_bytes)
            raise

    def unmap(self, address: int, num_bytes: int) -> None:
        """Does not wait for work that uses the range: synchronize before."""
        self.call("memory_unmap", c_ulonglong(address), c_size_t(num_bytes))


def _properties(device: int) -> MemoryProperties:
    location = Location(kind=ON_DEVICE, index=device)
    return MemoryProperties(kind=PINNED, handle_kinds=0, location=location)
