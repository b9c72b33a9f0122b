"""Errors of the approximate instructions of a card, within their documented bounds.

The `fast_*` functions of libdevice are less exact than the functions that they approximate, some by
more than a tolerance: a sine of 1000, a power with a large exponent. The evaluator has the exact
functions; the error added here takes any value up to the bound, the same one for the same operand.
(A bias would be another thing: it adds up in sums, where a card's error cancels.)

Not `tanh`, whose documented bound (2^-11) is five tolerances: `tests/corpus` has an honest kernel
with it, which is right on an H100 and would be wrong here with that bound.

Bounds: PTX ISA 8.x, section 9.7.3; CUDA programming guide, "Intrinsic functions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge.evalpool.judge.ttir.values import Array

Bound = Callable[["NDArray[np.float64]", "list[NDArray[np.float64]]"], "NDArray[np.float64]"]
"""From the exact result and the operands to the largest error."""

MIXER = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: multiplication by it spreads the bits of an operand."""


def _relative(bound: float) -> Bound:
    return lambda exact, operands: np.abs(exact) * bound


def _circular(
    exact: NDArray[np.float64], operands: list[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Sine and cosine: beyond a few turns the operand is reduced inexactly."""
    size = np.abs(operands[0])
    return np.where(size <= 2 * np.pi, 2.0**-20.5, np.where(size <= 100 * np.pi, 2.0**-14.7, 1e-2))


def _tangent(
    exact: NDArray[np.float64], operands: list[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Sine by cosine, each with its error."""
    return _circular(exact, operands) * (1 + np.abs(exact)) * np.sqrt(1 + exact * exact)


def _logarithm(absolute: float) -> Bound:
    """Absolute near 1, some units in the last place elsewhere."""

    def bound(
        exact: NDArray[np.float64], operands: list[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        value = operands[0]
        return np.where((value >= 0.5) & (value <= 2), absolute, np.abs(exact) * 2.0**-21.5)

    return bound


def _exponential(factor: float) -> Bound:
    """2 + floor(factor * |x|) units in the last place."""

    def bound(
        exact: NDArray[np.float64], operands: list[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        return np.abs(exact) * (2 + np.floor(factor * np.abs(operands[0]))) * 2.0**-23

    return bound


def _power(exact: NDArray[np.float64], operands: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """`ex2(y * lg2(x))`: the error of the logarithm, times the exponent."""
    base, exponent = operands
    logarithm = np.log2(np.abs(base))
    lost = _logarithm(2.0**-22)(logarithm, [np.abs(base)]) + np.abs(logarithm) * 2.0**-24
    return np.abs(exact) * (np.abs(exponent) * lost * np.log(2) + 2.0**-22)


INSTRUCTIONS: Mapping[str, Bound] = {
    "ex2": _relative(2.0**-22),
    "lg2": _logarithm(2.0**-22),
    "sin": _circular,
    "cos": _circular,
}
"""Instructions of PTX on float32 that are approximate only."""
FUNCTIONS: Mapping[str, Bound] = {
    "fast_cosf": _circular,
    "fast_sinf": _circular,
    "fast_tanf": _tangent,
    "fast_expf": _exponential(1.173),
    "fast_exp10f": _exponential(2.97),
    "fast_logf": _logarithm(2.0**-21.4),
    "fast_log2f": _logarithm(2.0**-22),
    "fast_log10f": _logarithm(2.0**-24),
    "fast_powf": _power,
    "fast_fdividef": _relative(2.0**-22),
}
"""Functions of libdevice."""


def approximated(bound: Bound, exact: Array, operands: list[Array]) -> NDArray[np.float64]:
    """An exact result with an error within a bound, which the operands determine."""
    with np.errstate(all="ignore"):
        doubles, wide = [one.astype(np.float64) for one in operands], exact.astype(np.float64)
        found = wide + _spread(exact.shape, operands) * bound(wide, doubles)
        return np.where(np.isfinite(found), found, wide)


def _spread(shape: tuple[int, ...], operands: list[Array]) -> NDArray[np.float64]:
    """[shape] numbers from -1 to 1, each determined by the bits of its operands."""
    mixed: NDArray[np.uint64] | None = None
    for one in operands:
        bits = np.ascontiguousarray(one, np.float32).reshape(one.shape).view(np.uint32)
        if mixed is None:
            mixed = np.empty(shape, np.uint64)
            mixed[...] = bits
        else:
            mixed ^= bits
        mixed *= np.uint64(MIXER)
        mixed ^= mixed >> np.uint64(29)
    assert mixed is not None
    mixed >>= np.uint64(11)
    spread = mixed.view(np.int64).astype(np.float64)  # cheaper than from unsigned ones
    spread *= 2.0**-52
    spread -= 1
    return spread
