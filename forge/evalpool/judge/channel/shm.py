# pyright: strict
"""Shared buffers: sealed memfds owned by the judge, where tensors lie in one, and their elements.

A layout is a list of `TensorSpec` (dtype, shape); both sides compute the same offsets from it. On
a GPU the buffer is a block of device memory (`driver/gpu_memory.py`). Elements are numpy arrays;
numpy lacks some of torch's types, which are read from their bits.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

Data: TypeAlias = "bytes | memoryview[int]"
"""Bytes of a tensor."""

ALIGNMENT_BYTES = 64
"""Alignment of torch's own allocations: an honest kernel may rely on 16."""
LARGE_BYTES = 8 << 20
"""Memory that is not copied."""
MAX_DIMENSIONS = 16
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8,
    "complex128": 16,
}  # fmt: skip
"""Types that a tensor may have; others make a problem unjudgeable. Outputs are not complex."""

F_ADD_SEALS = 1033
SEAL_SEALS, SEAL_SIZE, SEAL_WRITES = 0x1, 0x2 | 0x4, 0x8
"""F_SEAL_SEAL; F_SEAL_SHRINK | F_SEAL_GROW: no process can truncate it under the judge (SIGBUS);
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
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)

    @classmethod
    def parse(cls, data: Any) -> TensorSpec:
        """From `[dtype, shape]` as a child sent it. Raises LayoutError."""
        pair = cast("list[Any]", data) if isinstance(data, list) else []
        if len(pair) != 2 or str(pair[0]) not in ITEM_BYTES:
            raise LayoutError(f"no tensor spec: {str(pair)[:80]}")
        shape: list[Any] = [*pair[1]] if isinstance(pair[1], list) else [None]
        is_shape = all(type(size) is int and 0 <= size < 1 << 40 for size in shape)
        if not is_shape or len(shape) > MAX_DIMENSIONS:
            raise LayoutError(f"no shape: {str(shape)[:80]}")
        return cls(pair[0], tuple(shape))


def offsets(specs: Sequence[TensorSpec]) -> tuple[list[int], int]:
    """Start of each tensor, and the length of the whole (at least one byte)."""
    starts, end = list[int](), 0
    for spec in specs:
        starts.append(end)
        end += -(-spec.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return starts, max(end, 1)


@contextmanager
def shared_memory(num_bytes: int) -> Generator[tuple[int, mmap.mmap]]:
    """A zeroed memfd of this size, sealed against resizing, and our mapping of it."""
    with returned_memory(num_bytes) as fd, mmap.mmap(fd, num_bytes) as memory:
        fcntl.fcntl(fd, F_ADD_SEALS, SEAL_SEALS)
        yield fd, memory


@contextmanager
def returned_memory(max_bytes: int) -> Generator[int]:
    """A memfd that a child writes to and `taken` reads. It takes up what is written."""
    fd = os.memfd_create("forge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, max_bytes)
        fcntl.fcntl(fd, F_ADD_SEALS, SEAL_SIZE)
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


NUMPY_TYPES: dict[str, Any] = {
    name: np.uint8 if name == "bool" else np.dtype(name)
    for name in ITEM_BYTES
    if not name.startswith(("bfloat", "float8"))
}
FLOATING = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
UNWRITTEN_BYTE = 0xA5
"""Fills slots that have no NaN."""
EQUAL_BYTES = 1 << 19
"""Bytes that are compared at once: what is looked at stays in a cache for its other reader."""


def decode(spec: TensorSpec, data: Data) -> NDArray[np.float64]:
    """Shared bytes as float64 of the tensor's shape, in memory of its own."""
    found = np.empty(spec.shape)
    decode_part(spec.dtype, data, start=0, target=found.reshape(-1))
    return found


def decode_part(dtype: str, data: Data, *, start: int, target: NDArray[np.float64]) -> None:
    """Writes elements of shared bytes from number `start` on to a vector, as float64."""
    offset, count = start * ITEM_BYTES[dtype], len(target)
    if dtype == "bfloat16":
        bits = np.frombuffer(data, np.uint16, count=count, offset=offset)
        target[:] = (bits.astype(np.uint32) << 16).view(np.float32)
    elif dtype in NARROW:
        codes = np.frombuffer(data, np.uint8, count=count, offset=offset)
        np.take(NARROW[dtype], codes, out=target)
    else:
        target[:] = np.frombuffer(data, NUMPY_TYPES[dtype], count=count, offset=offset)


_HALF = (np.arange(128, dtype=np.uint16) << 7).view(np.float16).astype(np.float64) * 256
_HALF[-1] = np.nan
NARROW = {
    "float8_e4m3fn": np.concatenate([_HALF, -_HALF]),
    "float8_e5m2": (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float64),
}
"""Value of each byte: of e4m3fn the exponent's bias is 8 less than float16's, and of each sign the
last value is NaN; e5m2 is the upper byte of float16."""


def integers(spec: TensorSpec, data: Data) -> NDArray[np.generic]:
    """Elements of integers or bools in their own type: float64 is exact below 2^53 only."""
    return np.frombuffer(data, NUMPY_TYPES[spec.dtype]).reshape(spec.shape)


def unwritten_byte(spec: TensorSpec) -> int:
    """Byte of an output slot before the call: of a NaN, or a pattern for other types."""
    return 0xFF if spec.dtype in FLOATING else UNWRITTEN_BYTE


def unwritten(spec: TensorSpec) -> bytes:
    return bytes([unwritten_byte(spec)]) * spec.num_bytes


def fill(memory: mmap.mmap | bytearray, *, start: int, num_bytes: int, byte: int) -> None:
    if num_bytes:
        np.frombuffer(memory, np.uint8, count=num_bytes, offset=start).fill(byte)


def is_same(one: Data, other: Data) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, bytes) and isinstance(other, bytes):
        return one == other
    first, second = np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)
    return all(
        np.array_equal(first[start : start + EQUAL_BYTES], second[start : start + EQUAL_BYTES])
        for start in range(0, len(one), EQUAL_BYTES)
    )
