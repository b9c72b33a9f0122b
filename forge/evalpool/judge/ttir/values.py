"""Representation of the values of many program instances as numpy arrays, and their rounding.

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
result (`round_to`, exact to the bit; callers switch numpy's floating-point warnings off). `f16` is
`np.float16`.

Arrays are never written to after they are made: several values may share one, and an array may be
a read-only or stride-0 view, or a view of a tensor's memory.

In memory a `bf16` takes two bytes and an 8-bit float one: `decode` and `encode` convert. The other
types are the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.ttir.tree import Attribute, Scalar, Signature, Type, element_of

Array: TypeAlias = NDArray[Any]
DTYPES: Mapping[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "index": np.dtype(np.int64),
    **dict.fromkeys(("f8E4M3FN", "f8E5M2", "bf16", "f32"), np.dtype(np.float32)),
    "f16": np.dtype(np.float16),
    "f64": np.dtype(np.float64),
}
"""Numpy's type of the array for each scalar type."""


Operands: TypeAlias = Sequence[Array]
Attributes: TypeAlias = Mapping[str, Attribute]
Operation: TypeAlias = Callable[[Operands, Signature, Attributes], list[Array]]
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


Lanes: TypeAlias = "NDArray[np.intp] | slice"
"""Positions of some instances in a group."""


def take(array: Array, lanes: Lanes) -> Array:
    """The value of some instances of a group."""
    return array if array.shape[0] == 1 else array[lanes]


def expanded(array: Array, shape: Sequence[int]) -> Array:
    """The array with its block axes at full size, as a view; the instances' axis as it is.

    Args:
        array: compact, `[n or 1, ...]`.
        shape: of the block.
    """
    wanted = (array.shape[0], *shape)
    return array if array.shape == wanted else np.broadcast_to(array, wanted)


FLOATS8 = ("f8E4M3FN", "f8E5M2")
"""8-bit floats; their `FORMATS` are below."""


def memory_dtype(kind: Scalar) -> np.dtype[Any]:
    """Numpy's type of the raw elements in memory."""
    if kind.name == "bf16":
        return np.dtype(np.uint16)
    return np.dtype(np.uint8) if kind.name in FLOATS8 else dtype_of(kind)


def decode(raw: Array, kind: Scalar) -> Array:
    """Values of raw elements (`memory_dtype`). May return the argument itself."""
    if kind.name == "bf16":
        wide = raw.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    if kind.name in FLOATS8:
        return float8_values(kind.name)[raw.view(np.uint8)]
    if kind.name == "i1":
        return raw.view(np.uint8) != 0
    return raw


def encode(values: Array, kind: Scalar) -> Array:
    """Raw elements of values that are all representable in the type."""
    if kind.name == "bf16":
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)
    if kind.name in FLOATS8:
        return _encode_float8(values, kind.name)
    return values


@cache
def float8_values(name: str) -> NDArray[np.float32]:
    """The 256 values of an 8-bit float, by their bits."""
    codes = np.arange(256, dtype=np.uint16)
    if name == "f8E5M2":  # the upper byte of a float16
        return fixed((codes << 8).view(np.float16).astype(np.float32))
    found = ((codes & 0x7F) << 7).view(np.float16).astype(np.float32) * 256  # its bias is 8 less
    found[codes & 0x7F == 0x7F] = np.nan
    return fixed(np.where(codes & 0x80, -found, found))


def _encode_float8(values: Array, name: str) -> Array:
    if name == "f8E5M2":
        raw = (values.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
    else:
        half = (np.abs(values) / 256).astype(np.float16).view(np.uint16) >> 7
        raw = (half | np.signbit(values) * 0x80).astype(np.uint8)
    raw[np.isnan(values)] = 0x7F
    return raw


@dataclass(frozen=True, slots=True)
class Format:
    """A narrow binary format with the bias of IEEE."""

    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True
    """True if the last exponent holds infinities and NaN; else all ones alone are NaN, with both
    signs (OCP's E4M3FN)."""

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number."""
        return 2 - (1 << (self.exponent_bits - 1))

    @property
    def max(self) -> float:
        exponent = (1 << (self.exponent_bits - 1)) - self.has_infinity
        steps = (2 << self.mantissa_bits) - 1 - (not self.has_infinity)
        return steps * 2.0 ** (exponent - self.mantissa_bits)


FORMATS: Mapping[str, Format] = {
    "f16": Format(5, 10),
    "bf16": Format(8, 7),
    "f8E5M2": Format(5, 2),
    "f8E4M3FN": Format(4, 3, has_infinity=False),
    "tf32": Format(8, 10),
}
"""Narrow formats by MLIR's name of the type, and tf32, which is none of its types."""

_U32 = np.uint32


def round_to(
    values: NDArray[Any], name: str, *, toward_zero: bool = False, saturate: bool = False
) -> NDArray[np.float32]:
    """Round float32 or float64 values once to a narrow format, to nearest even if not towards
    zero; the result is float32.

    Args:
        saturate: Numbers and infinities beyond the range become the largest finite value; without
            it they become what the format has for them: an infinity, else NaN.
    """
    form = FORMATS[name]
    if values.dtype == np.float32 and not saturate and form.exponent_bits == 8:
        return _drop_bits(values, 23 - form.mantissa_bits, toward_zero=toward_zero)
    # In float64 each step and each quotient is exact.
    wide = values.astype(np.float64)
    power = (wide.view(np.uint64) & np.uint64(0x7FF0000000000000)).view(np.float64)
    step = np.clip(power, 2.0**form.min_exponent, 2.0**200) * 2.0**-form.mantissa_bits
    rounded = np.copysign((np.trunc if toward_zero else np.rint)(wide / step) * step, wide)
    limit = np.abs(rounded) > form.max
    if limit.any():
        finite = saturate | (toward_zero & np.isfinite(wide))
        beyond = np.where(finite, form.max, np.inf if form.has_infinity else np.nan)
        rounded = np.where(limit, np.copysign(beyond, wide), rounded)
    return rounded.astype(np.float32)


def _drop_bits(values: NDArray[Any], count: int, *, toward_zero: bool) -> NDArray[np.float32]:
    """Round by integer arithmetic where only bits of the mantissa are lost (bf16, tf32)."""
    bits = np.ascontiguousarray(values).view(_U32)
    low = _U32((1 << count) - 1)
    if toward_zero:
        result = bits.copy()
    else:
        result = bits >> _U32(count)
        result &= _U32(1)
        result += _U32(low >> 1)
        result += bits
    result &= ~low
    rounded = result.view(np.float32)
    invalid = np.isnan(values)
    if invalid.any():
        rounded[invalid] = np.nan
    return rounded


def scalar_of(kind: Type) -> Scalar:
    """Element type of a block of numbers. Raises Unsupported for pointers and descriptors."""
    element = element_of(kind)
    if not isinstance(element, Scalar):
        raise Unsupported(f"arithmetic on {kind}")
    return element


def unsigned(array: Array) -> Array:
    """The same bits as unsigned integers; a view."""
    return array.view(f"u{array.itemsize}")


def signed(array: Array, kind: Scalar) -> Array:
    """The same bits in the array type of an integer type; a view, but for i1."""
    if kind.name == "i1":
        return (array & array.dtype.type(1)).astype(np.bool_)
    return array.view(dtype_of(kind))


def to_float(array: Array, kind: Scalar) -> Array:
    """Numbers rounded to nearest even, once, to a float type; `array` has float32 or float64. 8-bit
    floats saturate, as `cvt.satfinite` does."""
    if kind.name == "f16":
        return array.astype(np.float16)
    if kind.name in FORMATS:
        return round_to(array, kind.name, saturate=kind.bits == 8)
    return array.astype(dtype_of(kind), copy=False)


def widened(array: Array) -> Array:
    """A float array in which arithmetic may be done: f16 as float32, others as they are."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def float_operation(function: Callable[..., Array]) -> Operation:
    """An elementwise operation on floats of one type.

    Narrow types are computed in float32 and rounded once, which gives the correctly rounded result
    of `+ - * /` and square roots: float32 has more than twice their bits.
    """

    def apply(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
        kind = scalar_of(kinds.results[0])
        return [to_float(function(*(widened(array) for array in operands)), kind)]

    return apply


def exact_operation(function: Callable[..., Array]) -> Operation:
    """An elementwise operation whose result, of the operands' type, needs no rounding."""
    return lambda operands, _kinds, _attributes: [function(*operands)]
