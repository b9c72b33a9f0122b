# pyright: strict
"""Words for the part of a tensor that a mask covers: `output[:, 39]`, the last column.

Called where an output is not written or differs in some places only. Looks at the indices of each
axis that have any such element, and at those in memory's order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

DENSE, TAIL = 0.5, 0.9
"""Share of a box of indices that differs where the box is the part, and of the end of a tensor in
memory's order: some elements are equal by chance."""
MOST = 0.95
"""Larger parts are all of a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of a tensor."""

    place: str
    """Its indices: `[:, 39]`, or empty for a part in memory's order."""
    words: str
    axis: int | None = None
    """The axis that it is a part of, where the others are whole; None for memory's order."""
    num_before: int | None = None
    """Indices of the axis, or elements, before a part that lies at the end."""


def region_of(mask: NDArray[np.bool_], *, least: int = 2) -> Region | None:
    """The part that a mask covers; None for fewer elements, nearly all, and no part with words."""
    axes = range(mask.ndim)
    along = [np.asarray(mask.any(axis=tuple(i for i in axes if i != axis))) for axis in axes]
    num = int(np.count_nonzero(mask))
    if not least <= num <= MOST * mask.size:
        return None
    found = region(along, num=num)
    if found and num == math.prod(int(one.sum()) for one in along):
        return found
    return _in_memory(mask.reshape(-1), num) or found


def region(along: Sequence[NDArray[np.bool_]], *, num: int) -> Region | None:
    """The same from the indices of each axis that have one of `num` elements."""
    sizes = [len(one) for one in along]
    partial = [axis for axis, one in enumerate(along) if not one.all()]
    box = math.prod(int(np.count_nonzero(one)) for one in along)
    if not partial or not 0 < box <= MOST * math.prod(sizes) or num < DENSE * box:
        return None
    found = [_indices(one) for one in along]
    if any(one is None for one in found):
        return None
    place = f"[{', '.join(one[0] for one in found if one)}]"
    place = "" if "..." in place else place
    only = partial[0] if len(partial) == 1 else None
    if only is None and not place:
        return None
    return Region(
        place=place,
        words="" if only is None else _remark(along[only], only, len(along)),
        axis=only,
        num_before=None if only is None else _num_before(along[only]),
    )


def _in_memory(flat: NDArray[np.bool_], num: int) -> Region | None:
    """A part of a contiguous tensor as a vector: its end, or each n-th element."""
    found = np.flatnonzero(flat)
    first, last = int(found[0]), int(found[-1])
    if last == len(flat) - 1 and first and num > TAIL * (last - first + 1):
        words = f"the last {last - first + 1} elements in memory, from number {first} on"
        return Region(place="", words=words, num_before=first)
    step = int(np.gcd.reduce(np.diff(found))) if len(found) > 2 else 1
    if step > 1 and num >= DENSE * (last - first) / step:
        words = f"each {step}th element in memory, from number {first} on"
        return Region(place="", words=words)
    return None


def _indices(one: NDArray[np.bool_]) -> tuple[str, NDArray[np.intp]] | None:
    """The indices that are True, as a slice; None where they are none."""
    found = np.flatnonzero(one)
    first, last = int(found[0]), int(found[-1])
    if one.all():
        return ":", found
    if len(found) == 1:
        return str(first), found
    if last - first + 1 == len(found):
        end = "" if last == len(one) - 1 else str(last + 1)
        return f"{first or ''}:{end}", found
    step = int(found[1]) - first
    if np.array_equal(found, np.arange(first, last + 1, step)):
        end = "" if last + step >= len(one) else str(last + 1)
        return f"{first or ''}:{end}:{step}", found
    if _alternating(one):
        return "...", found
    return None


def _alternating(one: NDArray[np.bool_]) -> int:
    """The length of blocks of which each second one is True; 0 for others."""
    edges = np.flatnonzero(np.diff(one.astype(np.int8))) + 1
    lengths = np.diff(np.concatenate([[0], edges]))
    if len(lengths) < 2 or (lengths != lengths[0]).any() or lengths[0] < 2:
        return 0
    return int(lengths[0]) if len(one) - int(edges[-1]) <= lengths[0] else 0


def _num_before(one: NDArray[np.bool_]) -> int | None:
    """Indices before the True ones, if these are the last; else None."""
    first = int(np.argmax(one))
    return first if first and bool(one[first:].all()) else None


def _remark(one: NDArray[np.bool_], axis: int, rank: int) -> str:
    found = np.flatnonzero(one)
    name = "element" if rank == 1 else ("row", "column")[axis] if rank == 2 else "index"
    of = f" of dimension {axis}" if name == "index" else ""
    plural = "indices" if name == "index" else f"{name}s"
    num = len(found)
    if length := _alternating(one):
        second = "second" if one[length] else "first"
        return f"blocks of {length} {plural}{of} alternate, the {second} of each two"
    if _num_before(one) is not None:
        return f"the last {name}{of}" if num == 1 else f"the last {num} {plural}{of}"
    if bool(one[:num].all()):
        return f"the first {name}{of}" if num == 1 else f"the first {num} {plural}{of}"
    if num > 2 and int(found[1]) - int(found[0]) > 1:
        return f"one of {int(found[1]) - int(found[0])} {plural}{of}"
    return ""
