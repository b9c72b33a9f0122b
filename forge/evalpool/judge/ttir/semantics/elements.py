"""Building blocks of elementwise operations: element types, signs, rounding of a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.semantics.formats import FORMATS, round_to
from forge.evalpool.judge.ttir.types import Scalar, element_of
from forge.evalpool.judge.ttir.values import Unsupported, dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forge.evalpool.judge.ttir.types import Type
    from forge.evalpool.judge.ttir.values import Array, Attribute, Operation, Signature

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
