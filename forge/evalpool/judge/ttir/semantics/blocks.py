"""Operations on whole blocks: shapes, joins, gathers, reductions, scans and matrix products.

All keep the compact form of their operands where they can: an axis of size 1 stands for equal
elements along it.

A region combines two elements. The order of a reduction is that of the hardware's shuffles: the
first half with the second half, again and again. Operations whose result does not depend on the
order have numpy's own loops. Products (`tt.dot`) are accumulated in float32 by the BLAS of numpy;
its order is not the tensor core's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from forge.evalpool.judge.ttir.tree import Signature, shape_of
from forge.evalpool.judge.ttir.values import (
    Array,
    Attributes,
    Combine,
    Operands,
    Operation,
    Unsupported,
    dtype_of,
    expanded,
    round_to,
    scalar_of,
    to_float,
)

# --- shapes


def reshaped(array: Array, old: tuple[int, ...], new: tuple[int, ...]) -> Array:
    """A block in another shape of as many elements.

    Axes are taken in the smallest groups that have equal products in both shapes: a group stays
    compact where the array is compact along all of it, else it is expanded.
    """
    middle: list[int] = [array.shape[0]]
    result: list[int] = [array.shape[0]]
    for first, last, to in _groups(old, new):
        sizes = array.shape[first + 1 : last + 1]
        is_compact = all(size == 1 for size in sizes)
        middle += sizes if is_compact else old[first:last]
        result += [1] * len(to) if is_compact else to
    return np.broadcast_to(array, middle).reshape(result)


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Groups of axes with equal products: first and last (exclusive) of `old`, sizes of `new`."""
    groups: list[tuple[int, int, tuple[int, ...]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first, begin = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while (left := prod(old[first:i])) != (right := prod(new[begin:j])):
            if left < right:
                i += 1
            else:
                j += 1
        groups.append((first, i, new[begin:j]))
    return groups


def join(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """Two blocks side by side along a new last axis."""
    return [np.stack(np.broadcast_arrays(*operands), axis=-1)]


def split(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """Both halves of a block whose last axis has size 2."""
    return [operands[0][..., 0], operands[0][..., -1]]


def cat(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """Elements of two blocks by turns along the first axis: the compiler may give them any order,
    the same for all blocks of one shape."""
    full = [
        expanded(array, shape_of(kind))
        for array, kind in zip(operands, kinds.operands, strict=True)
    ]
    n = max(len(array) for array in full)
    pair = np.stack([np.broadcast_to(a, (n, *a.shape[1:])) for a in full], axis=2)
    return [pair.reshape(n, -1, *pair.shape[3:])]


def gather(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """`source[index]` along one axis; an index out of range reads the nearest element, where the
    hardware's result is undefined."""
    axis = attributes["axis"] + 1
    source, index = (
        expanded(array, shape_of(kind))
        for array, kind in zip(operands, kinds.operands, strict=True)
    )
    n = max(len(source), len(index))
    source = np.broadcast_to(source, (n, *source.shape[1:]))
    index = np.broadcast_to(index, (n, *index.shape[1:]))
    inside = np.clip(index, 0, source.shape[axis] - 1)
    return [np.take_along_axis(source, inside, axis)]


def histogram(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """Counts of the integers `0, 1, ..., bins - 1`; others, and masked ones, are not counted."""
    shape = shape_of(kinds.operands[0])
    kind = kinds.results[0]
    (bins,) = shape_of(kind)
    full = [expanded(array, shape) for array in operands]
    n = max(len(array) for array in full)
    values = np.broadcast_to(full[0], (n, *shape)).astype(np.int64)
    counted = (values >= 0) & (values < bins)
    if len(full) > 1:
        counted = counted & full[1]
    places = (values + bins * np.arange(n)[:, None])[counted]
    counts = np.bincount(places, minlength=n * bins).reshape(n, bins)
    return [counts.astype(dtype_of(scalar_of(kind)))]


# --- reductions


ORDERLESS: Mapping[str, np.ufunc] = {
    "arith.addi": np.add,
    "arith.muli": np.multiply,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
}
"""Numpy's functions that give the same result in any order."""


def reduce(operands: Sequence[Array], axis: int, combine: Combine, name: str) -> list[Array]:
    """Combine all elements along a block axis, which the results lack.

    Args:
        operands: The reduced axis at its full size; other axes may be compact.
        axis: Block axis.
        combine: Evaluates the region on two lists of arrays of one shape.
        name: The operation, where the region is that operation on its two arguments; else empty.
    """
    place = axis + 1
    current = list(np.broadcast_arrays(*operands)) if len(operands) > 1 else list(operands)
    first, function = current[0], ORDERLESS.get(name)
    if function is not None and first.dtype != np.bool_:
        return [function.reduce(first, axis=place, dtype=first.dtype)]
    while (size := current[0].shape[place]) > 1:
        half = size // 2
        halves = combine(_part(current, place, 0, half), _part(current, place, half, 2 * half))
        if size % 2:
            rest = _part(current, place, 2 * half, size)
            halves = [
                np.concatenate([one, np.broadcast_to(last, _sized(one, place, 1))], axis=place)
                for one, last in zip(halves, rest, strict=True)
            ]
        current = halves
    return [array.squeeze(place) for array in current]


def scan(
    operands: Sequence[Array], axis: int, reverse: bool, combine: Combine, name: str
) -> list[Array]:
    """Combine each element with all before it (all behind it if `reverse`) along a block axis.

    Arguments as in `reduce`; the left argument of the region holds the elements that come first.
    """
    place = axis + 1
    current = list(np.broadcast_arrays(*operands)) if len(operands) > 1 else list(operands)
    if reverse:
        current = [np.flip(array, place) for array in current]
    first, function = current[0], ORDERLESS.get(name)
    if function is not None and first.dtype != np.bool_:
        found = [function.accumulate(first, axis=place, dtype=first.dtype)]
    else:
        found = _scan(current, place, combine)
    return [np.flip(array, place) for array in found] if reverse else found


def _scan(current: list[Array], place: int, combine: Combine) -> list[Array]:
    """Scan by scanning pairs: twice as many combinations as elements (Brent and Kung, 1982)."""
    size = current[0].shape[place]
    if size == 1:
        return current
    even = _part(current, place, 0, size - 1, 2)
    odd = _part(current, place, 1, size, 2)
    pairs = _scan(combine(even, odd), place, combine)
    results = [np.empty(_sized(one, place, size), one.dtype) for one in pairs]
    first = _part(current, place, 0, 1)
    for result, one, start in zip(results, pairs, first, strict=True):
        result[_slice(place, 1, size, 2)] = one
        result[_slice(place, 0, 1)] = start
    if size > 2:
        rest = _part(current, place, 2, size, 2)
        before = _part(pairs, place, 0, rest[0].shape[place])
        for result, one in zip(results, combine(before, rest), strict=True):
            result[_slice(place, 2, size, 2)] = one
    return results


def _slice(place: int, start: int, stop: int, step: int = 1) -> tuple[slice, ...]:
    return (slice(None),) * place + (slice(start, stop, step),)


def _part(arrays: list[Array], place: int, start: int, stop: int, step: int = 1) -> list[Array]:
    return [array[_slice(place, start, stop, step)] for array in arrays]


def _sized(array: Array, place: int, size: int) -> tuple[int, ...]:
    return (*array.shape[:place], size, *array.shape[place + 1 :])


EXACT_TERMS = 1024
"""Products of this many pairs of 8-bit integers have exact float32 sums."""


def dot(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """`a @ b + c`.

    Operands in float32 lose the bits that TF32 lacks, by truncation as the tensor cores do it,
    unless the precision is `ieee`, `tf32x3`, `bf16x3` or `bf16x6`: the last three nearly have
    float32's.
    """
    left, right, accumulator = operands
    kind, result = scalar_of(kinds.operands[0]), scalar_of(kinds.results[0])
    terms = shape_of(kinds.operands[0])[-1]  # the sum at full size; rows and columns stay compact
    left = expanded(left, (*left.shape[1:-1], terms))
    right = expanded(right, (*right.shape[1:-2], terms, right.shape[-1]))
    if not kind.is_float:
        if left.dtype != np.int8 or right.dtype != np.int8:
            raise Unsupported(f"tt.dot of {left.dtype}")
        wide = np.float32 if terms <= EXACT_TERMS else np.float64
        product = (left.astype(wide) @ right.astype(wide)).astype(np.int32)
        return [(product + accumulator).astype(dtype_of(result))]
    if kind.name == "f64":
        return [left @ right + accumulator]
    left, right = left.astype(np.float32, copy=False), right.astype(np.float32, copy=False)
    if kind.name == "f32" and attributes.get("inputPrecision", "ieee") == "tf32":
        left, right = (round_to(one, "tf32", toward_zero=True) for one in (left, right))
    return [to_float(left @ right + accumulator.astype(np.float32, copy=False), result)]


BLOCKS: Mapping[str, Operation] = {
    "tt.join": join,
    "tt.split": split,
    "tt.cat": cat,
    "tt.gather": gather,
    "tt.histogram": histogram,
    "tt.dot": dot,
}
