"""Arithmetic rounded once, in any direction: fused multiply-adds, `__nv_fadd_rz` and the like.

An exact result is kept as a float64 *rounded to odd* (if it is not representable, the neighbour
with an odd mantissa): rounding that to a type of at most 50 bits in any direction gives what
rounding the exact result gives. For float64 results the sign of the rounding error decides.
Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding
to odd", IEEE Transactions on Computers 57 (2008). Underflow of float64 products is not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.semantics.formats import Rounding

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.values import Array

SPLITTER = np.float64((1 << 27) + 1)
"""Veltkamp's constant: halves a float64 into two of 26 bits."""

HALF = 1 << 28
TAIL = 2 * HALF - 1
"""Bits of a float64's mantissa that a normal float32 lacks, and their highest one."""


def two_sum(left: Array, right: Array) -> tuple[Array, Array]:
    """Rounded sum and its error, exact (Knuth)."""
    total = left + right
    virtual = total - left
    error = (left - (total - virtual)) + (right - virtual)
    return total, np.where(np.isfinite(total), error, 0.0)


def two_product(left: Array, right: Array) -> tuple[Array, Array]:
    """Rounded product and its error, exact (Dekker)."""
    product = left * right
    a = left * SPLITTER
    a_high = a - (a - left)
    b = right * SPLITTER
    b_high = b - (b - right)
    a_low, b_low = left - a_high, right - b_high
    error = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    return product, np.where(np.isfinite(error), error, 0.0)


def to_odd(rounded: Array, error: Array) -> Array:
    """The float64 rounded to odd, of its value rounded to nearest and the sign of the error."""
    bits = rounded.view(np.int64)
    is_even = (bits & 1) == 0
    towards_zero = (error < 0) == (rounded > 0)
    step = np.where(towards_zero, -1, 1)
    moved = (bits + step).view(np.float64)
    return np.where((error != 0) & is_even & (rounded != 0), moved, rounded)


def fma(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` rounded once, of arrays of float32 or of float64."""
    if a.dtype == np.float32:
        return _fma_single(a, b, c)
    high, low = _fma_parts(a, b, c)
    return np.where(np.isfinite(high + low), high + low, a * b + c)


def _fma_single(a: Array, b: Array, c: Array) -> Array:
    """Rounding the float64 sum again is wrong only where it lies halfway between two float32."""
    total = a.astype(np.float64) * b + c
    halfway = (total.view(np.int64) & TAIL) == HALF
    halfway |= (np.abs(total) < np.finfo(np.float32).tiny) & (total != 0)
    result = total.astype(np.float32)
    if halfway.any():
        parts = [np.broadcast_to(one, total.shape)[halfway] for one in (a, b, c)]
        result[halfway] = fma_odd(*parts).astype(np.float32)
    return result


def fma_odd(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` of arrays of at most 26 bits, as a float64 rounded to odd."""
    product = a.astype(np.float64) * b
    return to_odd(*two_sum(product, c.astype(np.float64)))


def _fma_parts(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Two float64 whose rounded sum is the rounded `a * b + c`."""
    product_high, product_low = two_product(a, b)
    low, lowest = two_sum(c, product_low)
    high, middle = two_sum(product_high, low)
    return high, to_odd(*two_sum(middle, lowest))


def rounded_to_single(values: Array, rounding: Rounding) -> Array:
    """Float64 rounded to float32 in a direction."""
    nearest = values.astype(np.float32)
    return directed(nearest, values - nearest, rounding)


def directed(nearest: Array, error: Array, rounding: Rounding) -> Array:
    """The value in a direction, of that rounded to nearest and the sign of what is missing."""
    minus, plus = nearest.dtype.type(-np.inf), nearest.dtype.type(np.inf)
    down = np.where(error < 0, np.nextafter(nearest, minus), nearest)
    up = np.where(error > 0, np.nextafter(nearest, plus), nearest)
    match rounding:
        case Rounding.DOWN:
            return down
        case Rounding.UP:
            return up
        case Rounding.ZERO:
            return np.where(nearest > 0, down, up)
        case _:
            return nearest


def _single(operation: Callable[..., Array], rounding: Rounding, operands: list[Array]) -> Array:
    return rounded_to_single(operation(*(array.astype(np.float64) for array in operands)), rounding)


def _add_odd(left: Array, right: Array) -> Array:
    return to_odd(*two_sum(left, right))


def _divide_odd(left: Array, right: Array) -> Array:
    quotient = left / right
    product, low = two_product(quotient, right)
    missing = ((left - product) - low) * np.sign(right)
    return to_odd(quotient, np.where(np.isfinite(missing), missing, 0.0))


def _sqrt_odd(value: Array) -> Array:
    root = np.sqrt(value)
    product, low = two_product(root, root)
    missing = (value - product) - low
    return to_odd(root, np.where(np.isfinite(missing), missing, 0.0))


def _fma_wide(a: Array, b: Array, c: Array) -> Array:
    return to_odd(*two_sum(a * b, c))


def _subtract_odd(left: Array, right: Array) -> Array:
    return _add_odd(left, -right)


def _reciprocal_odd(value: Array) -> Array:
    return _divide_odd(np.ones_like(value), value)


def _rsqrt_near(value: Array) -> Array:
    """The exact value is no float64 and no midpoint of float32: its neighbour rounds as it does."""
    return 1.0 / np.sqrt(value)


ODD: Mapping[str, Callable[..., Array]] = {
    "add": _add_odd,
    "sub": _subtract_odd,
    "mul": np.multiply,
    "div": _divide_odd,
    "sqrt": _sqrt_odd,
    "fma": _fma_wide,
    "rcp": _reciprocal_odd,
    "rsqrt": _rsqrt_near,
}
"""Operations on float64 arrays of float32 numbers; results are rounded to odd."""


def single(name: str, rounding: Rounding, operands: list[Array]) -> Array:
    """A float32 operation of `ODD`, rounded once in a direction."""
    if rounding is Rounding.NEAREST_EVEN and name in _NEAREST:
        return _NEAREST[name](*operands)
    return _single(ODD[name], rounding, operands)


def double(name: str, rounding: Rounding, operands: list[Array]) -> Array:
    """A float64 operation, rounded once in a direction."""
    if name == "rcp":
        name, operands = "div", [np.ones_like(operands[0]), operands[0]]
    match name:
        case "add" | "sub":
            left, right = operands
            nearest, error = two_sum(left, right if name == "add" else -right)
        case "mul":
            nearest, error = two_product(*operands)
        case "div":
            left, right = operands
            nearest = left / right
            product, low = two_product(nearest, right)
            error = ((left - product) - low) * np.sign(right)
        case "sqrt":
            nearest = np.sqrt(operands[0])
            product, low = two_product(nearest, nearest)
            error = (operands[0] - product) - low
        case "fma":
            high, low = _fma_parts(*operands)
            nearest, error = two_sum(high, low)
        case _:
            raise KeyError(name)
    return directed(nearest, error, rounding)


_NEAREST: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "fma": fma,
}
