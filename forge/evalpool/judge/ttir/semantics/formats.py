"""Floating-point formats and their rounding, exact to the bit.

Every number of a narrow format (f16, bf16, fp8, tf32) is a float32 too, so rounding goes from
float32 or float64 to float32. Called by every operation whose result is narrow. Callers switch
numpy's floating-point warnings off.

Also here: what elementwise operations share: element types, signs, rounding of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.tree import Attribute, Scalar, Signature, Type, element_of
from forge.evalpool.judge.ttir.values import Array, Operation, Unsupported, dtype_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Rounding(StrEnum):
    """Directions of rounding."""

    NEAREST_EVEN = "rn"
    ZERO = "rz"


class Special(StrEnum):
    """Codes of a format that are not numbers."""

    IEEE = "ieee"
    """The last exponent holds infinities and NaN."""
    ONE_NAN = "one nan"
    """No infinity; all ones are NaN, with both signs (OCP's E4M3FN)."""


@dataclass(frozen=True, slots=True)
class Format:
    """A narrow binary format."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: Special

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def max(self) -> float:
        """Largest finite value."""
        exponent = (1 << self.exponent_bits) - 1 - self.bias
        steps = (2 << self.mantissa_bits) - 1
        if self.special is Special.IEEE:
            exponent -= 1
        else:
            steps -= 1
        return steps * 2.0 ** (exponent - self.mantissa_bits)

    @property
    def overflow(self) -> float:
        """Value of a number beyond the range, where it does not saturate."""
        return np.inf if self.special is Special.IEEE else np.nan


FORMATS: Mapping[str, Format] = {
    "f16": Format(5, 10, 15, Special.IEEE),
    "bf16": Format(8, 7, 127, Special.IEEE),
    "f8E5M2": Format(5, 2, 15, Special.IEEE),
    "f8E4M3FN": Format(4, 3, 7, Special.ONE_NAN),
    "tf32": Format(8, 10, 127, Special.IEEE),
}
"""Narrow formats by MLIR's name of the type, and tf32, which is none of its types."""

_U32 = np.uint32


def round_to(
    values: NDArray[Any],
    name: str,
    *,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturate: bool = False,
) -> NDArray[np.float32]:
    """Round float32 or float64 values once to a narrow format; the result is float32.

    Args:
        saturate: Numbers and infinities beyond the range become the largest finite value; without
            it they become what the format has for them: an infinity, else NaN.
    """
    form = FORMATS[name]
    if values.dtype == np.float32 and not saturate and form.exponent_bits == 8:
        return _drop_bits(values, 23 - form.mantissa_bits, rounding)
    return _round_any(values, form, rounding, saturate)


def _drop_bits(values: NDArray[Any], count: int, rounding: Rounding) -> NDArray[np.float32]:
    """Round by integer arithmetic where only bits of the mantissa are lost (bf16, tf32)."""
    bits = np.ascontiguousarray(values).view(_U32)
    low = _U32((1 << count) - 1)
    match rounding:
        case Rounding.NEAREST_EVEN:
            result = bits >> _U32(count)
            result &= _U32(1)
            result += _U32(low >> 1)
            result += bits
        case Rounding.ZERO:
            result = bits.copy()
    result &= ~low
    rounded = result.view(np.float32)
    invalid = np.isnan(values)
    if invalid.any():
        rounded[invalid] = np.nan
    return rounded


def _round_any(
    values: NDArray[Any], form: Format, rounding: Rounding, saturate: bool
) -> NDArray[np.float32]:
    """Round in float64, in which each step and each quotient is exact."""
    wide = values.astype(np.float64)
    power = (wide.view(np.uint64) & np.uint64(0x7FF0000000000000)).view(np.float64)
    step = np.clip(power, 2.0**form.min_exponent, 2.0**200) * 2.0**-form.mantissa_bits
    steps = (np.trunc if rounding is Rounding.ZERO else np.rint)(wide / step)
    rounded = np.copysign(steps * step, wide)
    limit = np.abs(rounded) > form.max
    if limit.any():
        rounded = np.where(limit, _beyond(wide, form, rounding, saturate), rounded)
    return rounded.astype(np.float32)


def _beyond(wide: NDArray[Any], form: Format, rounding: Rounding, saturate: bool) -> NDArray[Any]:
    """Results of numbers and infinities beyond the range."""
    finite = saturate | ((rounding is Rounding.ZERO) & np.isfinite(wide))
    return np.copysign(np.where(finite, form.max, form.overflow), wide)


UNSIGNED: Mapping[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(f"i{size}"): np.dtype(f"u{size}") for size in (1, 2, 4, 8)
}


def scalar_of(kind: Type) -> Scalar:
    """Element type of a block of numbers.

    Raises:
        Unsupported: for pointers and descriptors.
    """
    element = element_of(kind)
    if not isinstance(element, Scalar):
        raise Unsupported(f"arithmetic on {kind}")
    return element


def unsigned(array: Array) -> Array:
    """The same bits as unsigned integers; a view."""
    return array.view(np.uint8) if array.dtype == np.bool_ else array.view(UNSIGNED[array.dtype])


def signed(array: Array, kind: Scalar) -> Array:
    """The same bits in the array type of an integer type; a view, but for i1."""
    if kind.name == "i1":
        return (array & array.dtype.type(1)).astype(np.bool_)
    return array.view(dtype_of(kind))


def to_float(array: Array, kind: Scalar) -> Array:
    """Numbers rounded to nearest even, once, to a float type; `array` has float32 or float64.

    8-bit floats saturate, as `cvt.satfinite` does.
    """
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

    def apply(
        operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
    ) -> list[Array]:
        kind = scalar_of(signature.results[0])
        return [to_float(function(*(widened(array) for array in operands)), kind)]

    return apply


def exact_operation(function: Callable[..., Array]) -> Operation:
    """An elementwise operation whose result, of the operands' type, needs no rounding."""

    def apply(
        operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
    ) -> list[Array]:
        return [function(*operands)]

    return apply
