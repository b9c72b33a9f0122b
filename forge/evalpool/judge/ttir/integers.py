"""Operations on symbolic integers and addresses. Each answers None where a sum does not pay; then
the operation of `semantics` runs on arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.symbolic import Symbolic

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.ttir.arrange import Value
    from forge.evalpool.judge.ttir.values import Array

MAX_TERM = 4096
"""Elements of an array that may become a term of a sum."""
TRUE, FALSE = np.True_, np.False_


def as_sum(value: Value) -> Symbolic | None:
    """A sum, or a small integer array as one."""
    if isinstance(value, Symbolic):
        return value
    return Symbolic.of(value) if value.size <= MAX_TERM and value.size > 0 else None


def add(a: Value, b: Value, bits: int) -> Symbolic | None:
    """a + b"""
    left, right = as_sum(a), as_sum(b)
    if left is None or right is None:
        return None
    total = left.plus(right)
    return total if total.fits(bits) else None


def subtract(a: Value, b: Value, bits: int) -> Symbolic | None:
    """a - b"""
    left, right = as_sum(a), as_sum(b)
    if left is None or right is None:
        return None
    total = left.plus(right.times(-1))
    return total if total.fits(bits) else None


def multiply(a: Value, b: Value, bits: int) -> Symbolic | None:
    """a * b, where one of them is a constant."""
    left, right = as_sum(a), as_sum(b)
    if left is None or right is None:
        return None
    if left.is_constant:
        left, right = right, left
    if right.is_constant:
        total = left.times(right.low)
        return total if total.fits(bits) else None
    if len(left.terms) == len(right.terms) == 1:
        product = left.terms[0] * right.terms[0]
        total = Symbolic.of(product) if product.size <= MAX_TERM else None
        corners = [x * y for x in (left.low, left.high) for y in (right.low, right.high)]
        is_safe = max(map(abs, corners)) < 1 << 62
        return total if total is not None and is_safe and total.fits(bits) else None
    return None


def divide(a: Value, b: Value, bits: int) -> Symbolic | None:
    """a / b, truncated, by a constant."""
    parts = _parts(a, b)
    return parts[0] if parts is not None else None


def remainder(a: Value, b: Value, bits: int) -> Symbolic | None:
    """a % b, by a constant."""
    parts = _parts(a, b)
    return parts[1] if parts is not None else None


def _parts(a: Value, b: Value) -> tuple[Symbolic, Symbolic] | None:
    left, right = as_sum(a), as_sum(b)
    if left is None or right is None or not right.is_constant:
        return None
    return left.quotient_and_rest(right.low)


COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": np.less,
    "sle": np.less_equal,
    "sgt": np.greater,
    "sge": np.greater_equal,
}
SIGNED = {"ult": "slt", "ule": "sle", "ugt": "sgt", "uge": "sge"}


def compare(a: Value, b: Value, predicate: str) -> Array | None:
    """A comparison, decided by the ranges where they allow it."""
    left, right = as_sum(a), as_sum(b)
    if left is None or right is None:
        return None
    if predicate in SIGNED:
        if left.low < 0 or right.low < 0:
            return None
        predicate = SIGNED[predicate]
    rest = left.plus(right.times(-1))
    rank = rest.terms[0].ndim
    decided = _decided(rest, predicate)
    if decided is not None:
        return np.full((1,) * rank, decided)
    function = COMPARISONS[predicate]
    first, *others = rest.terms
    if not others:
        return function(first, np.zeros(1, np.int64))
    negated = -others[0]
    for term in others[1:]:
        negated = negated - term
    return function(first, negated)


def _decided(rest: Symbolic, predicate: str) -> bool | None:
    low, high = rest.low, rest.high
    answers = {
        "slt": (high < 0, low >= 0),
        "sle": (high <= 0, low > 0),
        "sgt": (low > 0, high <= 0),
        "sge": (low >= 0, high < 0),
        "eq": (low == high == 0, low > 0 or high < 0),
        "ne": (low > 0 or high < 0, low == high == 0),
    }
    is_true, is_false = answers[predicate]
    return True if is_true else False if is_false else None


def both(a: Array, b: Array) -> Array | None:
    """a and b, over booleans, where one is the same everywhere."""
    if a.size == 1:
        return b if a.flat[0] else a
    if b.size == 1:
        return a if b.flat[0] else b
    return None


def either(a: Array, b: Array) -> Array | None:
    """a or b, over booleans, where one is the same everywhere."""
    if a.size == 1:
        return a if a.flat[0] else b
    if b.size == 1:
        return b if b.flat[0] else a
    return None
