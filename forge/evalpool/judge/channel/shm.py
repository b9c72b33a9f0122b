"""Shared buffers: sealed memfds owned by the judge, and where each tensor lies in one.

A layout is a list of `TensorSpec` (dtype, shape); both sides compute the same offsets from it. On
a GPU the buffer is a block of device memory (`gpu_memory.py`).
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Data: TypeAlias = "bytes | memoryview[int]"
"""Bytes of a tensor."""

ALIGNMENT_BYTES = 64
"""Alignment of torch's own allocations: an honest kernel may rely on 16."""
LARGE_BYTES = 8 << 20
"""Memory that is not copied."""
MAX_DIMENSIONS = 16
ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}
"""Types that a tensor may have; others make a problem unjudgeable. Outputs are not complex."""

F_ADD_SEALS = 1033
SEAL_SEALS, SEAL_SIZE, SEAL_WRITES = 0x1, 0x2 | 0x4, 0x8
"""F_SEAL_SEAL; F_SEAL_SHRINK | F_SEAL_GROW: nobody can truncate it under the judge (SIGBUS);
F_SEAL_WRITE, which is refused while anybody has it mapped for writing."""


class LayoutError(Exception):
    """A layout from a child is malformed or larger than allowed."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: element type by torch's name, and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)

    @classmethod
    def parse(cls, data: Any) -> TensorSpec:
        """From `[dtype, shape]` as a child sent it. Raises LayoutError."""
        if not isinstance(data, list) or len(data) != 2 or str(data[0]) not in ITEM_BYTES:
            raise LayoutError(f"no tensor spec: {str(data)[:80]}")
        shape = data[1]
        if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
            raise LayoutError(f"no shape: {str(shape)[:80]}")
        if not all(type(size) is int and 0 <= size < 1 << 40 for size in shape):
            raise LayoutError(f"no shape: {str(shape)[:80]}")
        return cls(data[0], tuple(shape))


def offsets(specs: Sequence[TensorSpec]) -> tuple[list[int], int]:
    """Start of each tensor, and the length of the whole (at least one byte)."""
    starts, end = [], 0
    for spec in specs:
        starts.append(end)
        end += -(-spec.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return starts, max(end, 1)


@contextmanager
def shared_memory(num_bytes: int) -> Iterator[tuple[int, mmap.mmap]]:
    """A zeroed memfd of this size, sealed against resizing, and our mapping of it."""
    seals = SEAL_SIZE | SEAL_SEALS
    with _memory_file(num_bytes, seals=seals) as fd, mmap.mmap(fd, num_bytes) as memory:
        yield fd, memory


@contextmanager
def returned_memory(max_bytes: int) -> Iterator[int]:
    """A memfd that a child writes to and `taken` reads. It takes up what is written."""
    with _memory_file(max_bytes, seals=SEAL_SIZE) as fd:
        yield fd


@contextmanager
def _memory_file(num_bytes: int, *, seals: int) -> Iterator[int]:
    fd = os.memfd_create("forge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, num_bytes)
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
        yield fd
    finally:
        os.close(fd)


def taken(fd: int, num_bytes: int) -> Data:
    """The first bytes of `returned_memory` behind a child's work, immutable.

    Large content stays where it is and is sealed, unless the child still has it mapped: a copy of
    1 GB takes 0.6 s.
    """
    if num_bytes < LARGE_BYTES:
        return os.pread(fd, num_bytes, 0)
    try:
        fcntl.fcntl(fd, F_ADD_SEALS, SEAL_WRITES)
    except OSError:
        with mmap.mmap(fd, num_bytes, prot=mmap.PROT_READ) as again:
            return again[:]
    flags = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
    return memoryview(mmap.mmap(fd, num_bytes, flags=flags, prot=mmap.PROT_READ))
