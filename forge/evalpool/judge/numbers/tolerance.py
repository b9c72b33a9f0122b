"""The tolerance of an element, as numbers: shared by compare.py (numpy) and gpu_compare.py (torch).

    |got - ref| ≤ tol · (scale + |ref|) + 4 · e

    tol    1e-4 for fp32, 1e-2 for fp16 and bf16, a step of the type for fp8: the loosest of the
           problem's precision's, the output's own type's, and that of half-precision results that
           the reference has on its way (`rounding_of`: a product in bf16, returned as fp32); 1e-10
           for float64 of a problem that is not in half precision
    scale  the smallest rms of the finite reference elements in the element's slabs (`families`),
           at least `floor_of` times the rms of all, or the slab's own share of it if that is less
           on every input set (shares.py), as which alone small slabs count; a sentinel, as the
           -1e9 of masked scores, is left out (`is_sentinel`)
    e      the smallest of the largest own errors in its slabs (errors/own_error.py): what an honest
           kernel may lose too

Integers and bools must be equal, but for a few integers that a reference rounds from floats
(errors/rounded.py). Imports nothing but math.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2, "e4m3": 0.125, "e5m2": 0.25}
DOUBLE_TOLERANCE = 1e-10
PRECISION = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}
"""By the type of an output. Any other says nothing."""
HALF = ("fp16", "bf16", "e4m3", "e5m2")
ERROR_FACTOR = 4.0
FLOOR = 2.0**-6
"""Least scale of a slab, in rms of the whole output, times 1e-4 / tol: an honest kernel may lose
thirteen roundings of an intermediate result that cancels in a whole row or column, as 2σ(2x) - 1
does for a tanh near 0 by fast division."""
HALF_FLOOR = 0.25
"""The same for half precision, whose rounding is coarser than its tolerance is loose."""
MIN_SLAB = 16
"""Elements of a slab whose own size says something: the rms of fewer may be small by chance."""
MAX_SMALL = 4096
"""Slabs of fewer elements than that in one family: their sizes come from all sets (shares.py)."""
MIN_SENTINELS = 16
SENTINEL_RATIO = 2.0**10
"""A sentinel is at least so many elements of one magnitude, so far above all others."""
MIN_LINE = 64
"""Elements of a line along the last axis, of a tensor of three axes or more."""


def tolerance(dtype: str, precision: str, *, is_error_known: bool = True) -> float:
    """`tol` of an output. A float64 output whose own error is unknown may have been computed in
    less."""
    if dtype == "float64" and precision == "fp32" and is_error_known:
        return DOUBLE_TOLERANCE
    return max(TOLERANCE[precision], TOLERANCE[PRECISION.get(dtype, precision)])


def rounding_in(layout: Mapping[str, object], precision: str) -> str:
    """The coarsest precision that an oracle says its reference rounds to, if it is one."""
    found = str(layout.get("rounding"))
    return found if found in ("fp16", "bf16") and precision == "fp32" else precision


def floor_of(dtype: str, precision: str) -> float:
    """The least scale of a slab of MIN_SLAB elements or more, in rms of the whole output."""
    is_half = precision in HALF or PRECISION.get(dtype, precision) in HALF
    return HALF_FLOOR if is_half else FLOOR


def floors_of(dtype: str, precision: str, shape: Sequence[int]) -> list[float]:
    """The least scale of a slab where nothing is known of other sets, by family. A small slab has
    that of the whole output: it says nothing."""
    floor = floor_of(dtype, precision)
    return [1.0 if is_small(shape, axes) else floor for axes in families(shape)]


def families(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Axes that the elements of a slab share, for each family of slabs. Slabs of few elements are
    a family if there are at most MAX_SMALL; where all are small, each element is one. One empty
    tuple stands for the whole tensor."""
    size = math.prod(shape)
    every = tuple(range(len(shape)))
    axes = [(axis,) for axis in every if shape[axis] > 1]
    if all(is_small(shape, one) for one in axes) and 1 < size <= MAX_SMALL:
        return [every]
    found: list[tuple[int, ...]] = [
        one for one in axes if shape[one[0]] <= MAX_SMALL or not is_small(shape, one)
    ]
    if len(shape) >= 3 and shape[-1] >= MIN_LINE and size > shape[-1]:
        found.append(every[:-1])
    return found or [()]


def is_small(shape: Sequence[int], axes: tuple[int, ...]) -> bool:
    """True if a slab has less than MIN_SLAB elements."""
    size = math.prod(shape)
    return bool(axes) and size < MIN_SLAB * math.prod(shape[axis] for axis in axes)


def is_sentinel(largest: float, rest: float, count: int) -> bool:
    """True if the largest magnitude of a tensor stands for something else than a number.

    Args:
        largest: magnitude of `count` elements.
        rest: largest magnitude of the others.
    """
    return count >= MIN_SENTINELS and 0 < rest < largest / SENTINEL_RATIO
