"""Element types in memory: the bits of a value, and the value of bits.

In memory a `bf16` takes two bytes and an 8-bit float one; as a value (`values.DTYPES`) both are
float32. The other types are the same in both.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.values import Array, dtype_of, fixed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge.evalpool.judge.ttir.types import Scalar

FORMATS: dict[str, tuple[int, int, int]] = {
    "f8E4M3FN": (4, 7, 0),
    "f8E5M2": (5, 15, 1),
    "f8E4M3FNUZ": (4, 8, 2),
    "f8E5M2FNUZ": (5, 16, 2),
    "f8E4M3B11FNUZ": (4, 11, 2),
}
"""Bits of the exponent, its bias, and the special values of each 8-bit float: 0 has only NaN with
all bits set; 1 has infinities and NaN as IEEE; 2 has one NaN in place of the negative zero."""


def memory_dtype(kind: Scalar) -> np.dtype[Any]:
    """Numpy's type of the raw elements in memory."""
    if kind.name == "bf16":
        return np.dtype(np.uint16)
    return np.dtype(np.uint8) if kind.name in FORMATS else dtype_of(kind)


def decode(raw: Array, kind: Scalar) -> Array:
    """Values of raw elements (`memory_dtype`). May return the argument itself."""
    if kind.name == "bf16":
        wide = raw.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    if kind.name in FORMATS:
        return float8_values(kind.name)[raw.view(np.uint8)]
    if kind.name == "i1":
        return raw.view(np.uint8) != 0
    return raw


def encode(values: Array, kind: Scalar) -> Array:
    """Raw elements of values that are all representable in the type."""
    if kind.name == "bf16":
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)
    if kind.name in FORMATS:
        return _encode_float8(values, kind.name)
    return values


@cache
def float8_values(name: str) -> NDArray[np.float32]:
    """The 256 values of an 8-bit float, by their bits."""
    exponent_bits, bias, special = FORMATS[name]
    mantissa_bits = 7 - exponent_bits
    codes = np.arange(256)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes & 0x7F) >> mantissa_bits
    fraction = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = np.ldexp(1 + fraction, exponent - bias)
    values = sign * np.where(exponent == 0, np.ldexp(fraction, 1 - bias), normal)
    if special == 0:
        values[(codes & 0x7F) == 0x7F] = np.nan
    elif special == 1:
        top = exponent == (1 << exponent_bits) - 1
        values[top] = np.where(fraction[top] == 0, sign[top] * np.inf, np.nan)
    else:
        values[0x80] = np.nan
    return fixed(values.astype(np.float32))


@cache
def _sorted_codes(name: str) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    values = float8_values(name)
    codes = np.flatnonzero(~np.isnan(values) & (np.arange(256) != 0x80))
    order = codes[np.argsort(values[codes], kind="stable")]
    return fixed(values[order]), fixed(order.astype(np.uint8))


def _encode_float8(values: Array, name: str) -> Array:
    known, codes = _sorted_codes(name)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    raw = codes[places]
    special = FORMATS[name][2]
    raw[np.isnan(values)] = 0x80 if special == 2 else 0x7F
    if special != 2:
        raw[(values == 0) & np.signbit(values)] = 0x80
    return raw
