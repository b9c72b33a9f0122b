"""The tolerance of an element, as numbers: shared by compare.py (numpy) and gpu_compare.py (torch).

    |got - ref| ≤ tol · (scale + |ref|) + 4 · e

    tol    1e-4 for fp32, 1e-2 for fp16 and bf16, a step of the type for fp8: the looser of the
           problem's precision's and the output's own type's (a reference may make half-precision
           tensors itself); 1e-10 for float64 of a problem that is not in half precision
    scale  the smallest rms of the finite reference elements in the element's slabs (`families`),
           at least `floor_of` times the rms of all; a sentinel, as the -1e9 of masked scores, is
           left out (`is_sentinel`). An output of a few elements without slabs has the scale of
           each element (`has_own_scales`), to which `e` adds its typical size (few.py)
    e      the smallest of the largest own errors in its slabs (own_error.py): what an honest
           kernel may lose too

Integers and bools must be equal. Imports nothing but math.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
"""Elements of a slab: the rms of fewer may be small by chance."""
MAX_FEW = 32
"""Elements of an output without slabs of which each has a scale of its own."""
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


def floor_of(
    dtype: str, precision: str, shape: Sequence[int] = (), *, is_error_known: bool = True
) -> float:
    """The least scale of a slab, in rms of the whole output. Of single elements it is in their own
    errors; where these are unknown, the scale is that of the whole."""
    if has_own_scales(shape):
        return 0.0 if is_error_known else 1.0
    is_half = precision in HALF or PRECISION.get(dtype, precision) in HALF
    return HALF_FLOOR if is_half else FLOOR


def has_own_scales(shape: Sequence[int]) -> bool:
    """True for an output whose elements each are a slab: a mean beside a sum of squares."""
    return families(shape) == [tuple(range(len(shape)))] and bool(shape)


def families(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Axes that the elements of a slab share, for each family of slabs. Where every slab would be
    too small: one empty tuple, the whole tensor; all axes, for up to MAX_FEW elements."""
    size = math.prod(shape)
    found: list[tuple[int, ...]] = [
        (axis,) for axis, length in enumerate(shape) if length > 1 and size // length >= MIN_SLAB
    ]
    if len(shape) >= 3 and shape[-1] >= MIN_LINE and size > shape[-1]:
        found.append(tuple(range(len(shape) - 1)))
    return found or [tuple(range(len(shape))) if 1 < size <= MAX_FEW else ()]


def is_sentinel(largest: float, rest: float, count: int) -> bool:
    """True if the largest magnitude of a tensor stands for something else than a number.

    Args:
        largest: magnitude of `count` elements.
        rest: largest magnitude of the others.
    """
    return count >= MIN_SENTINELS and 0 < rest < largest / SENTINEL_RATIO
