"""Integer arithmetic: `arith.*i`, `tt.mulhiui` and their relatives. Results wrap.

Where the IR leaves a result undefined, these give what NVIDIA's hardware gives: shifts beyond the
width shift everything out, `x / 0` has all bits set and `x % 0` is x, the smallest integer divided
by -1 is itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.semantics.formats import (
    exact_operation,
    scalar_of,
    signed,
    unsigned,
)

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.tree import Attribute, Signature
    from forge.evalpool.judge.ttir.values import Array, Operation

Binary = Callable[..., "Array"]


def integer_operation(function: Binary, *, is_unsigned: bool = False) -> Operation:
    """An elementwise operation on integers; i1 is -1 or 0 where it is signed."""

    def apply(
        operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
    ) -> list[Array]:
        kind = scalar_of(signature.results[0])
        if kind.name == "i1":
            operands = [_wide_bit(array, is_unsigned=is_unsigned) for array in operands]
        if is_unsigned:
            operands = [unsigned(array) for array in operands]
        return [signed(function(*operands), kind)]

    return apply


def _wide_bit(array: Array, *, is_unsigned: bool) -> Array:
    wide = array.astype(np.int8)
    return wide if is_unsigned else -wide


def divide(left: Array, right: Array) -> Array:
    """Quotient rounded towards zero."""
    if right.size == 1 and right.flat[0] > 0:
        return _divide_by(left, right.flat[0])
    divisor = np.where(right == 0, right.dtype.type(1), right)
    quotient = np.floor_divide(left, divisor)
    if left.dtype.kind == "i":
        inexact = quotient * divisor != left
        quotient += inexact & ((left < 0) != (divisor < 0))
    return np.where(right == 0, _all_ones(left), quotient)


def _divide_by(left: Array, divisor: Any) -> Array:
    """Division by one positive number, for which numpy has a fast loop."""
    quotient = np.floor_divide(left, divisor)
    if left.dtype.kind == "i" and (left < 0).any():
        quotient += (quotient * divisor != left) & (left < 0)
    return quotient


def _all_ones(like: Array) -> Array:
    return ~np.zeros((), like.dtype)


def remainder(left: Array, right: Array) -> Array:
    """Remainder with the sign of the left operand."""
    quotient = divide(left, right)
    return np.where(right == 0, left, left - quotient * right)


def multiply_high(left: Array, right: Array) -> Array:
    """Upper half of the product of unsigned integers of one width."""
    bits = left.dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(f"u{left.dtype.itemsize * 2}")
        product = left.astype(wide) * right.astype(wide)
        return (product >> wide.type(bits)).astype(left.dtype)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a, b, c, d = left >> half, left & low, right >> half, right & low
    middle = a * d + (b * d >> half)
    other = b * c + (middle & low)
    return a * c + (middle >> half) + (other >> half)


def multiply_high_signed(left: Array, right: Array) -> Array:
    """Upper half of the product of signed integers, of two's complements: Hacker's Delight, 8-3."""
    high = multiply_high(unsigned(left), unsigned(right)).view(left.dtype)
    return high - np.where(left < 0, right, 0) - np.where(right < 0, left, 0)


def floor_divide(left: Array, right: Array) -> Array:
    """Quotient rounded downwards; all bits set for a divisor of 0."""
    divisor = np.where(right == 0, right.dtype.type(1), right)
    return np.where(right == 0, _all_ones(left), np.floor_divide(left, divisor))


def ceil_divide(left: Array, right: Array) -> Array:
    """Quotient rounded upwards; all bits set for a divisor of 0."""
    quotient = divide(left, right)
    inexact = (quotient * right != left) & (right != 0)
    return quotient + (inexact & ((left < 0) == (right < 0)))


COMPARISONS: Mapping[str, np.ufunc] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def cmpi(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """Comparison by a predicate: `eq`, `ne`, or `s` or `u` before `lt`, `le`, `gt`, `ge`."""
    predicate: str = attributes["predicate"]
    if operands[0].dtype == np.bool_ and predicate not in ("eq", "ne"):
        operands = [_wide_bit(array, is_unsigned=predicate[0] == "u") for array in operands]
    if predicate[0] == "u":
        operands = [unsigned(array) for array in operands]
    return [COMPARISONS[predicate[-2:]](*operands)]


def count_leading_zeros(array: Array) -> Array:
    """Number of zero bits above the highest set bit of unsigned integers; the width for 0."""
    bits = array.dtype.itemsize * 8
    filled = array.copy()
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < bits:
            filled |= filled >> filled.dtype.type(shift)
    return bits - np.bitwise_count(filled).astype(array.dtype)


def count_ones(array: Array) -> Array:
    """Number of set bits of unsigned integers."""
    return np.bitwise_count(array).astype(array.dtype)


INTEGERS: Mapping[str, Operation] = {
    "arith.addi": integer_operation(np.add),
    "arith.subi": integer_operation(np.subtract),
    "arith.muli": integer_operation(np.multiply),
    "arith.divsi": integer_operation(divide),
    "arith.divui": integer_operation(divide, is_unsigned=True),
    "arith.remsi": integer_operation(remainder),
    "arith.remui": integer_operation(remainder, is_unsigned=True),
    "arith.floordivsi": integer_operation(floor_divide),
    "arith.ceildivsi": integer_operation(ceil_divide),
    "arith.ceildivui": integer_operation(ceil_divide, is_unsigned=True),
    "arith.andi": exact_operation(np.bitwise_and),
    "arith.ori": exact_operation(np.bitwise_or),
    "arith.xori": exact_operation(np.bitwise_xor),
    "arith.shli": integer_operation(np.left_shift),
    "arith.shrsi": integer_operation(np.right_shift),
    "arith.shrui": integer_operation(np.right_shift, is_unsigned=True),
    "arith.maxsi": integer_operation(np.maximum),
    "arith.minsi": integer_operation(np.minimum),
    "arith.maxui": integer_operation(np.maximum, is_unsigned=True),
    "arith.minui": integer_operation(np.minimum, is_unsigned=True),
    "arith.cmpi": cmpi,
    "tt.mulhiui": integer_operation(multiply_high, is_unsigned=True),
    "math.absi": integer_operation(np.abs),
}
