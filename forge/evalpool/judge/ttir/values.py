"""Representation of the values of many program instances as numpy arrays.

The agreement between the evaluator and `semantics`: a value of type `tensor<AxBxf32>` in `n`
instances is an array of three axes, `[n, A, B]`; a scalar has one axis, `[n]`.

**Compact axes.** Any axis may have size 1 where the value does not vary along it, the axis of the
instances too. So a constant of that type is `[1, 1, 1]`, and a row of column numbers `[1, 1, B]`.
Elementwise operations leave that to numpy's broadcasting, and their results are compact as well.
Operations that are not elementwise expand the block axes that they need with `expanded` (stride 0,
no copy) and may leave the axis of instances at 1 where all operands have 1 there.

**Element types.** See `DTYPES`. Integers have no sign in TTIR: the arrays are signed, and unsigned
operations view them as unsigned. `i1` is `np.bool_`. `bf16` and the 8-bit floats are `np.float32`
arrays whose values are all representable in the narrow type: the code that computes one rounds the
result. `f16` is `np.float16`.

Arrays are never written to after they are made: several values may share one, and an array may be
a read-only or stride-0 view, or a view of a tensor's memory.

In memory a `bf16` takes two bytes and an 8-bit float one: `decode` and `encode` convert. The other
types are the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.ttir.tree import Attribute, Scalar, Signature

Array: TypeAlias = NDArray[Any]
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "i1": np.bool_,
        "i8": np.int8,
        "i16": np.int16,
        "i32": np.int32,
        "i64": np.int64,
        "index": np.int64,
        "f8E4M3FN": np.float32,
        "f8E5M2": np.float32,
        "f16": np.float16,
        "bf16": np.float32,
        "f32": np.float32,
        "f64": np.float64,
    }.items()
}
"""Numpy's type of the array for each scalar type."""


Operation: TypeAlias = Callable[[Sequence[Array], Signature, Mapping[str, Attribute]], list[Array]]
"""Semantics of one operation: one array for each result. `semantics.OPERATIONS` has one for each
name of the closed list that is neither memory, pointers, control flow nor calls. Raises
`Unsupported` where it has none for these types or attributes. Floating-point warnings are off.

Reductions and scans have a region. For these `semantics` exports two functions:

    reduce(operands, axis, combine, name) -> list[Array]
    scan(operands, axis, reverse, combine, name) -> list[Array]

`axis` counts block axes (array axis `axis + 1`), `operands` are compact, as the results may be.
`combine(left, right)`, over lists of arrays of one shape, evaluates the region elementwise; `name`
is the operation (`arith.addf`) where the region is that one operation on its two arguments in
order, else empty.
"""
Combine: TypeAlias = Callable[[Sequence[Array], Sequence[Array]], list[Array]]


class Unsupported(Exception):
    """The evaluator cannot run this kernel; the message says which operation and why."""


def dtype_of(kind: Scalar) -> np.dtype[Any]:
    """Numpy's type of the arrays that hold values of a scalar type. Raises Unsupported for AMD's
    8-bit floats (FNUZ)."""
    if kind.name not in DTYPES:
        raise Unsupported(f"the type {kind.name} needs a card")
    return DTYPES[kind.name]


def fixed(array: Array) -> Array:
    """The array, made read-only: plans outlive the candidate that they are made for."""
    array.flags.writeable = False
    return array


def expanded(array: Array, shape: Sequence[int]) -> Array:
    """The array with its block axes at full size, as a view; the instances' axis as it is.

    Args:
        array: compact, `[n or 1, ...]`.
        shape: of the block.
    """
    wanted = (array.shape[0], *shape)
    return array if array.shape == wanted else np.broadcast_to(array, wanted)


FORMATS: dict[str, tuple[int, int, int]] = {
    "f8E4M3FN": (4, 7, 0),
    "f8E5M2": (5, 15, 1),
}
"""Bits of the exponent, its bias, and the special values of each 8-bit float: 0 has only NaN with
all bits set; 1 has infinities and NaN as IEEE."""


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
    else:
        top = exponent == (1 << exponent_bits) - 1
        values[top] = np.where(fraction[top] == 0, sign[top] * np.inf, np.nan)
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
    raw[np.isnan(values)] = 0x7F
    raw[(values == 0) & np.signbit(values)] = 0x80
    return raw
