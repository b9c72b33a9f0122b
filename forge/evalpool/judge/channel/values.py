# pyright: strict
"""Elements of shared tensors as numpy arrays, and the content of a tensor that nobody has written.

Called by the judge. numpy lacks some of torch's types: those are read from their bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.channel.shm import ITEM_BYTES, TensorSpec

if TYPE_CHECKING:
    import mmap

    from numpy.typing import NDArray

    from forge.evalpool.judge.channel.shm import Data

NUMPY_TYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint8": np.uint8,
    "bool": np.uint8,
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


def _e5m2() -> NDArray[np.float64]:
    """[256] values of float8_e5m2, which is the upper byte of float16."""
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float64)


def _e4m3() -> NDArray[np.float64]:
    """[256] values of float8_e4m3fn: its exponent's bias is 8 less than float16's, and of each sign
    the last value is NaN."""
    codes = np.arange(128, dtype=np.uint16)
    half = (codes << 7).view(np.float16).astype(np.float64) * 256
    half[-1] = np.nan
    return np.concatenate([half, -half])


NARROW = {"float8_e4m3fn": _e4m3(), "float8_e5m2": _e5m2()}
"""Value of each byte."""


def integers(spec: TensorSpec, data: Data) -> NDArray[np.generic]:
    """Elements of a tensor of integers or bools in their own type: as float64 they are exact below
    2^53 only."""
    return np.frombuffer(data, NUMPY_TYPES[spec.dtype]).reshape(spec.shape)


def unwritten_byte(spec: TensorSpec) -> int:
    """Byte of an output slot before the call: of a NaN, or a pattern for other types."""
    return 0xFF if spec.dtype in FLOATING else UNWRITTEN_BYTE


def unwritten(spec: TensorSpec) -> bytes:
    """Content of an output slot before the call."""
    return bytes([unwritten_byte(spec)]) * spec.num_bytes


def fill(memory: mmap.mmap | bytearray, *, start: int, num_bytes: int, byte: int) -> None:
    """Writes one byte over a part of shared memory."""
    if num_bytes:
        np.frombuffer(memory, np.uint8, count=num_bytes, offset=start).fill(byte)


def is_same(one: Data, other: Data) -> bool:
    """True if two tensors have the same bytes."""
    if len(one) != len(other):
        return False
    if isinstance(one, bytes) and isinstance(other, bytes):
        return one == other
    first, second = np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)
    return all(
        np.array_equal(first[start : start + EQUAL_BYTES], second[start : start + EQUAL_BYTES])
        for start in range(0, len(one), EQUAL_BYTES)
    )
