"""Fused multiply-adds, rounded once.

An exact result is kept as a float64 *rounded to odd* (if it is not representable, the neighbour
with an odd mantissa): rounding that to a type of at most 50 bits gives what rounding the exact
result gives.
Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding
to odd", IEEE Transactions on Computers 57 (2008). Underflow of float64 products is not covered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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
