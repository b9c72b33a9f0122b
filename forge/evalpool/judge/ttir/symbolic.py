"""Integers and addresses of a block, kept as a sum of terms that each vary along few axes.

`pid * 64 + arange(64)` in 1000 instances is a term `[1000, 1]` and a term `[1, 64]`, not 64000
numbers; its range is known, so a bounds mask may be decided without computing it, and a load from
such addresses is a strided view. Arrays take over where a sum would not pay.

Promise: the sum equals the value exactly; every value lies in `low .. high`, and that range fits
the element type, so that nothing wraps.

Operations on sums answer None where one does not pay; then the operation of `semantics` runs on
arrays. Also here: rearranging blocks of either form, taking some instances, merging groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.ttir.semantics.blocks import reshaped
from forge.evalpool.judge.ttir.semantics.elementwise import COMPARISONS
from forge.evalpool.judge.ttir.values import Array, fixed

Terms = tuple["NDArray[np.int64]", ...]
Value: TypeAlias = "Array | Symbolic"
"""Integers of blocks may be either, addresses are always sums, everything else is an array."""


class Symbolic:
    """A sum of compact int64 arrays, each `[n or 1, ...]` with one axis per axis of the block."""

    __slots__ = ("_arrays", "high", "low", "terms")

    def __init__(self, terms: Terms, low: int, high: int) -> None:
        self.terms = terms
        self.low = low
        self.high = high
        self._arrays: dict[np.dtype[Any], Array] = {}

    @classmethod
    def of(cls, array: Array) -> Symbolic:
        """A compact integer array as one term."""
        term = array.astype(np.int64, copy=False)
        return cls((term,), int(term.min()), int(term.max()))

    @classmethod
    def constant(cls, value: int, rank: int) -> Symbolic:
        """One number for all lanes of a block with `rank` axes."""
        return cls((fixed(np.full((1,) * (rank + 1), value, np.int64)),), value, value)

    def array(self, dtype: np.dtype[Any]) -> Array:
        """The sum as a compact array of this integer type."""
        found = self._arrays.get(dtype)
        if found is None:
            total: Array = self.terms[0]
            if len(self.terms) > 1 and dtype.itemsize < 8 and self.fits(dtype.itemsize * 8):
                # Terms of a sum that fits may wrap on the way: the result is right modulo 2^bits.
                total = total.astype(dtype)
                for term in self.terms[1:]:
                    total = total + term.astype(dtype)
            else:
                for term in self.terms[1:]:
                    total = total + term
            found = self._arrays[dtype] = fixed(total.astype(dtype, copy=False))
        return found

    def fits(self, bits: int) -> bool:
        """True if every value is in the range of signed integers of this width."""
        return -(1 << (bits - 1)) <= self.low and self.high < 1 << (bits - 1)

    @property
    def is_constant(self) -> bool:
        """True if all lanes of all instances have one value."""
        return self.low == self.high

    def mapped(self, function: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Symbolic:
        """The same sum with each term's array rearranged (transposed, indexed, reshaped)."""
        return Symbolic(tuple(function(term) for term in self.terms), self.low, self.high)

    def plus(self, other: Symbolic) -> Symbolic:
        """The sum of two sums."""
        terms = list(self.terms)
        for term in other.terms:
            _merge(terms, term)
        return Symbolic(tuple(terms), self.low + other.low, self.high + other.high)

    def times(self, factor: int) -> Symbolic:
        """Each value multiplied by a number."""
        ends = sorted((self.low * factor, self.high * factor))
        return Symbolic(tuple(term * factor for term in self.terms), ends[0], ends[1])

    def quotient_and_rest(self, divisor: int) -> tuple[Symbolic, Symbolic] | None:
        """Division that truncates, of values that are not negative by a positive number, where
        the terms that are no multiples sum up to less than it; None elsewhere."""
        if self.low < 0 or divisor <= 0:
            return None
        whole: list[NDArray[np.int64]] = []
        rest: list[NDArray[np.int64]] = []
        for term in self.terms:
            (rest if np.any(term % divisor) else whole).append(term)
        low = sum(int(term.min()) for term in rest)
        high = sum(int(term.max()) for term in rest)
        if low < 0 or high >= divisor:
            return None
        zero = np.zeros((1,) * self.terms[0].ndim, np.int64)
        quotient = tuple(term // divisor for term in whole) or (zero,)
        return (
            Symbolic(quotient, self.low // divisor, self.high // divisor),
            Symbolic(tuple(rest) or (zero,), low, high),
        )


def _merge(terms: list[NDArray[np.int64]], added: NDArray[np.int64]) -> None:
    """Adds a term to the sum: into one that varies along the same axes or more, else beside.

    What varies between instances only stays apart from what varies within a block, so that a block
    stays the same strided window in every instance.
    """
    is_per_instance = added.size == added.shape[0]
    for place, term in enumerate(terms):
        pairs = [*zip(term.shape, added.shape, strict=True)]
        covers = all(b in (a, 1) for a, b in pairs) or all(a in (b, 1) for a, b in pairs)
        if covers and (term.size == term.shape[0]) == is_per_instance:
            terms[place] = term + added
            return
    terms.append(added)


MAX_TERM = 4096
"""Elements of an array that may become a term of a sum."""


def as_sum(value: Value) -> Symbolic | None:
    """A sum, or a small integer array as one."""
    if isinstance(value, Symbolic):
        return value
    return Symbolic.of(value) if value.size <= MAX_TERM and value.size > 0 else None


def _on_sums(
    function: Callable[[Symbolic, Symbolic], Symbolic | None],
) -> Callable[[Value, Value, int], Symbolic | None]:
    """A function of sums for integers of so many bits: None where one is no sum, or where the
    result does not fit."""

    def apply(a: Value, b: Value, bits: int) -> Symbolic | None:
        left, right = as_sum(a), as_sum(b)
        found = None if left is None or right is None else function(left, right)
        return found if found is not None and found.fits(bits) else None

    return apply


def _product(left: Symbolic, right: Symbolic) -> Symbolic | None:
    """Product where one of them is a constant, or of two terms."""
    if left.is_constant:
        left, right = right, left
    if right.is_constant:
        return left.times(right.low)
    if len(left.terms) == len(right.terms) == 1:
        corners = [x * y for x in (left.low, left.high) for y in (right.low, right.high)]
        product = left.terms[0] * right.terms[0]
        is_safe = max(map(abs, corners)) < 1 << 62
        return Symbolic.of(product) if product.size <= MAX_TERM and is_safe else None
    return None


def _divided(part: int) -> Callable[[Symbolic, Symbolic], Symbolic | None]:
    """The quotient (0) or the rest (1) of a division by a constant."""

    def divided(left: Symbolic, right: Symbolic) -> Symbolic | None:
        parts = left.quotient_and_rest(right.low) if right.is_constant else None
        return None if parts is None else parts[part]

    return divided


add = _on_sums(Symbolic.plus)
subtract = _on_sums(lambda left, right: left.plus(right.times(-1)))
multiply = _on_sums(_product)
divide = _on_sums(_divided(0))
remainder = _on_sums(_divided(1))


def compare(a: Value, b: Value, predicate: str) -> Array | None:
    """A comparison, decided by the ranges where they allow it."""
    left, right = as_sum(a), as_sum(b)
    if left is None or right is None:
        return None
    if predicate[0] == "u" and (left.low < 0 or right.low < 0):
        return None
    rest = left.plus(right.times(-1))
    rank = rest.terms[0].ndim
    low, high = rest.low, rest.high
    is_true, is_false = {
        "lt": (high < 0, low >= 0),
        "le": (high <= 0, low > 0),
        "gt": (low > 0, high <= 0),
        "ge": (low >= 0, high < 0),
        "eq": (low == high == 0, low > 0 or high < 0),
        "ne": (low > 0 or high < 0, low == high == 0),
    }[predicate[-2:]]
    if is_true or is_false:
        return np.full((1,) * rank, is_true)
    function = COMPARISONS[predicate[-2:]]
    first, *others = rest.terms
    if not others:
        return function(first, np.zeros(1, np.int64))
    negated = -others[0]
    for term in others[1:]:
        negated = negated - term
    return function(first, negated)


def both(a: Array, b: Array) -> Array | None:
    """a and b, over booleans, where one is the same everywhere."""
    if a.size == 1:
        return b if a.flat[0] else a
    return both(b, a) if b.size == 1 else None


def either(a: Array, b: Array) -> Array | None:
    """a or b, over booleans, where one is the same everywhere."""
    if a.size == 1:
        return a if a.flat[0] else b
    return either(b, a) if b.size == 1 else None


Lanes: TypeAlias = "NDArray[np.intp] | slice"
"""Positions of some instances in a group."""

INT64 = np.dtype(np.int64)


def mapped(value: Value, function: Callable[[Array], Array]) -> Value:
    """A value whose array, or the array of each term, is rearranged."""
    return value.mapped(function) if isinstance(value, Symbolic) else function(value)


def reshape(value: Value, before: Sequence[int], after: Sequence[int]) -> Value:
    """The elements of a block in the same order in another shape."""
    old, new = tuple(before), tuple(after)
    return mapped(value, lambda array: reshaped(array, old, new))


def lanes_of(mask: NDArray[np.bool_]) -> Lanes:
    """Positions where the mask is True; a slice where they are consecutive."""
    found = np.flatnonzero(mask)
    first, last = int(found[0]), int(found[-1])
    return slice(first, last + 1) if last - first + 1 == len(found) else found


Taken = TypeVar("Taken", bound="Value | None")


def take(value: Taken, lanes: Lanes) -> Taken:
    """The value of some instances of a group."""
    if value is None:
        return value
    found = mapped(value, lambda array: array if array.shape[0] == 1 else array[lanes])
    return cast("Taken", found)


def merge(pieces: Sequence[tuple[Lanes, Value]], size: int) -> Value:
    """One value of a group of `size` instances, from those of groups that it was split into."""
    first = pieces[0][1]
    arrays = first.terms if isinstance(first, Symbolic) else (first,)
    varies = any(array.shape[0] > 1 for array in arrays)
    if all(value is first for _, value in pieces) and not varies:
        return first
    if isinstance(first, Symbolic):
        return _merge_sums(pieces, size)
    return _merge_arrays(
        [(ls, one.array(INT64) if isinstance(one, Symbolic) else one) for ls, one in pieces], size
    )


def _merge_arrays(pieces: Sequence[tuple[Lanes, Array]], size: int) -> Array:
    shape = np.broadcast_shapes(*(array.shape[1:] for _, array in pieces))
    merged = np.empty((size, *shape), pieces[0][1].dtype)
    for lanes, array in pieces:
        merged[lanes] = array
    return merged


def _merge_sums(pieces: Sequence[tuple[Lanes, Value]], size: int) -> Symbolic:
    """Term by term where all pieces have terms of the same shapes, so that windows stay windows."""
    sums = [(lanes, sum_of(value)) for lanes, value in pieces]
    low = min(value.low for _, value in sums)
    high = max(value.high for _, value in sums)
    shapes = [[term.shape[1:] for term in value.terms] for _, value in sums]
    if any(one != shapes[0] for one in shapes):
        arrays = [(lanes, value.array(INT64)) for lanes, value in sums]
        return Symbolic((_merge_arrays(arrays, size),), low, high)
    terms: list[Array] = []
    for place in range(len(shapes[0])):
        arrays = [(lanes, value.terms[place]) for lanes, value in sums]
        head = arrays[0][1]
        is_same = all(
            array.shape[0] == 1 and (array is head or np.array_equal(array, head))
            for _, array in arrays
        )
        terms.append(head if is_same else _merge_arrays(arrays, size))
    return Symbolic(tuple(terms), low, high)


def sum_of(value: Value) -> Symbolic:
    """An integer value as a sum."""
    return value if isinstance(value, Symbolic) else Symbolic.of(value)
