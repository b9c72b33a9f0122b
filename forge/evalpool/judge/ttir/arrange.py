"""Values of groups of instances: rearranging blocks, taking some instances, merging groups.

A value is a compact array (`values`) or a `Symbolic` sum: integers of blocks may be either,
addresses are always sums, everything else is an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from forge.evalpool.judge.ttir.semantics.shapes import reshaped
from forge.evalpool.judge.ttir.symbolic import Symbolic, Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge.evalpool.judge.ttir.values import Array

Lanes: TypeAlias = "NDArray[np.intp] | slice"
"""Positions of some instances in a group."""

INT64 = np.dtype(np.int64)


def mapped(value: Value, function: Callable[[Array], Array]) -> Value:
    """A value whose array, or the array of each term, is rearranged."""
    return value.mapped(function) if isinstance(value, Symbolic) else function(value)


def splat(value: Value, rank: int) -> Value:
    """A scalar of each instance as a block with `rank` axes."""
    return mapped(value, lambda array: array.reshape(-1, *(1,) * rank))


def expand_dims(value: Value, axis: int) -> Value:
    """Inserts an axis of size 1 into a block."""
    return mapped(value, lambda array: np.expand_dims(array, axis + 1))


def transpose(value: Value, order: Sequence[int]) -> Value:
    """Permutes the axes of a block."""
    axes = (0, *(axis + 1 for axis in order))
    return mapped(value, lambda array: array.transpose(axes))


def reshape(value: Value, before: Sequence[int], after: Sequence[int]) -> Value:
    """The elements of a block in the same order in another shape."""

    old, new = tuple(before), tuple(after)
    return mapped(value, lambda array: reshaped(array, old, new))


def lanes_of(mask: NDArray[np.bool_]) -> Lanes:
    """Positions where the mask is True; a slice where they are consecutive."""
    found = np.flatnonzero(mask)
    first, last = int(found[0]), int(found[-1])
    return slice(first, last + 1) if last - first + 1 == len(found) else found


def take(value: Value | None, lanes: Lanes) -> Value | None:
    """The value of some instances of a group."""
    if value is None:
        return None
    return mapped(value, lambda array: array if array.shape[0] == 1 else array[lanes])


def merge(pieces: Sequence[tuple[Lanes, Value]], size: int) -> Value:
    """One value of a group of `size` instances, from those of groups that it was split into."""
    first = pieces[0][1]
    if all(value is first for _, value in pieces) and not _varies(first):
        return first
    if isinstance(first, Symbolic):
        return _merge_sums(pieces, size)
    return _merge_arrays([(lanes, _array(value)) for lanes, value in pieces], size)


def _varies(value: Value) -> bool:
    arrays = value.terms if isinstance(value, Symbolic) else (value,)
    return any(array.shape[0] > 1 for array in arrays)


def _array(value: Value) -> Array:
    return value.array(INT64) if isinstance(value, Symbolic) else value


def _merge_arrays(pieces: Sequence[tuple[Lanes, Array]], size: int) -> Array:
    shape = np.broadcast_shapes(*(array.shape[1:] for _, array in pieces))
    merged = np.empty((size, *shape), pieces[0][1].dtype)
    for lanes, array in pieces:
        merged[lanes] = array
    return merged


def _merge_sums(pieces: Sequence[tuple[Lanes, Value]], size: int) -> Symbolic:
    """Term by term where all pieces have terms of the same shapes, so that windows stay windows."""
    sums = [(lanes, _sum(value)) for lanes, value in pieces]
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


def _sum(value: Value) -> Symbolic:
    return value if isinstance(value, Symbolic) else Symbolic.of(value)
