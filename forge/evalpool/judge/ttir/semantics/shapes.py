"""Operations that move elements of blocks: shapes, orders, joins, gathers, histograms.

All keep the compact form of their operands where they can: an axis of size 1 stands for equal
elements along it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.semantics.formats import scalar_of
from forge.evalpool.judge.ttir.tree import shape_of
from forge.evalpool.judge.ttir.values import dtype_of, expanded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.evalpool.judge.ttir.tree import Attribute, Signature
    from forge.evalpool.judge.ttir.values import Array, Operation

    Attributes = Mapping[str, Attribute]


def make_range(
    operands: Sequence[Array], signature: Signature, attributes: Attributes
) -> list[Array]:
    """Integers from `start` to `end`."""
    return [np.arange(attributes["start"], attributes["end"], dtype=np.int32)[None]]


def splat(operands: Sequence[Array], signature: Signature, attributes: Attributes) -> list[Array]:
    """A scalar in every element."""
    rank = len(shape_of(signature.results[0]))
    return [operands[0].reshape(-1, *([1] * rank))]


def unsplat(operands: Sequence[Array], signature: Signature, attributes: Attributes) -> list[Array]:
    """The only element of a block."""
    return [operands[0].reshape(-1)]


def broadcast(
    operands: Sequence[Array], signature: Signature, attributes: Attributes
) -> list[Array]:
    """Equal elements along axes of size 1: the compact form is the same."""
    return [operands[0]]


def expand_dims(
    operands: Sequence[Array], signature: Signature, attributes: Attributes
) -> list[Array]:
    """A new axis of size 1."""
    return [np.expand_dims(operands[0], attributes["axis"] + 1)]


def trans(operands: Sequence[Array], signature: Signature, attributes: Attributes) -> list[Array]:
    """Axes in another order."""
    order = attributes["order"]
    return [operands[0].transpose(0, *(axis + 1 for axis in order))]


def reshape(operands: Sequence[Array], signature: Signature, attributes: Attributes) -> list[Array]:
    """The same elements, row by row, in another shape."""
    shape = shape_of(signature.operands[0])
    return [reshaped(operands[0], shape, shape_of(signature.results[0]))]


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


def join(operands: Sequence[Array], signature: Signature, attributes: Attributes) -> list[Array]:
    """Two blocks side by side along a new last axis."""
    return [np.stack(np.broadcast_arrays(*operands), axis=-1)]


def split(operands: Sequence[Array], signature: Signature, attributes: Attributes) -> list[Array]:
    """Both halves of a block whose last axis has size 2."""
    return [operands[0][..., 0], operands[0][..., -1]]


def cat(operands: Sequence[Array], signature: Signature, attributes: Attributes) -> list[Array]:
    """Elements of two blocks by turns along the first axis: the compiler may give them any order,
    the same for all blocks of one shape."""
    full = [
        expanded(array, shape_of(kind))
        for array, kind in zip(operands, signature.operands, strict=True)
    ]
    n = max(len(array) for array in full)
    pair = np.stack([np.broadcast_to(a, (n, *a.shape[1:])) for a in full], axis=2)
    return [pair.reshape(n, -1, *pair.shape[3:])]


def gather(operands: Sequence[Array], signature: Signature, attributes: Attributes) -> list[Array]:
    """`source[index]` along one axis; an index out of range reads the nearest element.

    The hardware's result is undefined there.
    """
    axis = attributes["axis"] + 1
    source, index = (
        expanded(array, shape_of(kind))
        for array, kind in zip(operands, signature.operands, strict=True)
    )
    n = max(len(source), len(index))
    source = np.broadcast_to(source, (n, *source.shape[1:]))
    index = np.broadcast_to(index, (n, *index.shape[1:]))
    inside = np.clip(index, 0, source.shape[axis] - 1)
    return [np.take_along_axis(source, inside, axis)]


def histogram(
    operands: Sequence[Array], signature: Signature, attributes: Attributes
) -> list[Array]:
    """Counts of the integers `0, 1, ..., bins - 1`; others, and masked ones, are not counted."""
    shape = shape_of(signature.operands[0])
    kind = signature.results[0]
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


SHAPES: Mapping[str, Operation] = {
    "tt.make_range": make_range,
    "tt.splat": splat,
    "tt.unsplat": unsplat,
    "tt.broadcast": broadcast,
    "tt.expand_dims": expand_dims,
    "tt.trans": trans,
    "tt.reshape": reshape,
    "tt.join": join,
    "tt.split": split,
    "tt.cat": cat,
    "tt.gather": gather,
    "tt.histogram": histogram,
}
