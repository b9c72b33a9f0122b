"""Floating-point arithmetic: `arith.*f`, `math.*`, and Triton's precise and clamped forms.

Sums, products, quotients, square roots and fused multiply-adds are correctly rounded. Elementary
functions are numpy's, within two units in the last place; the hardware's own are approximate too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.semantics.formats import (
    exact_operation,
    float_operation,
    scalar_of,
    to_float,
    widened,
)
from forge.evalpool.judge.ttir.semantics.integers import COMPARISONS
from forge.evalpool.judge.ttir.semantics.special import erf

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.tree import Attribute, Signature
    from forge.evalpool.judge.ttir.values import Array, Operation


def cmpf(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """Comparison by a predicate; the ordered ones are false for NaN, the unordered ones true."""
    left, right = operands
    predicate: str = attributes["predicate"]
    shape = np.broadcast_shapes(left.shape, right.shape)
    match predicate:
        case "false" | "true":
            return [np.full(shape, predicate == "true")]
        case "ord":
            return [~(np.isnan(left) | np.isnan(right))]
        case "uno":
            return [np.isnan(left) | np.isnan(right)]
        case "one":
            return [(left < right) | (left > right)]
        case "ueq":
            return [~((left < right) | (left > right))]
        case _ if predicate[0] == "o" or predicate == "une":
            return [COMPARISONS[predicate[1:]](left, right)]
        case _:
            return [~COMPARISONS[_OPPOSITE[predicate[1:]]](left, right)]


_OPPOSITE: Mapping[str, str] = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def select(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """The second operand where the first is true, else the third; a scalar condition chooses whole
    blocks."""
    condition, left, right = operands
    rank = max(left.ndim, right.ndim)
    condition = condition.reshape(condition.shape + (1,) * (rank - condition.ndim))
    return [np.where(condition, left, right)]


def clampf(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """A value moved into an interval; NaN stays NaN only with `propagateNan = all`."""
    value, low, high = operands
    if attributes.get("propagateNan", "none") == "all":
        return [np.minimum(np.maximum(value, low), high)]
    return [np.fmin(np.fmax(value, low), high)]


def fma(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` in float64. A float32 is rounded once then, but for one in 2^29."""
    return a.astype(np.float64) * b + c


def fma_operation(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """`a * b + c`."""
    a, b, c = (widened(array) for array in operands)
    return [to_float(fma(a, b, c), scalar_of(signature.results[0]))]


def rsqrt(array: Array) -> Array:
    """Reciprocal square root, computed in float64 where that rounds to the right float32."""
    if array.dtype == np.float64:
        return 1 / np.sqrt(array)
    return (1 / np.sqrt(array.astype(np.float64))).astype(np.float32)


FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "tt.precise_divf": np.divide,
    "tt.approx_divf": np.divide,
    "tt.precise_sqrt": np.sqrt,
    "math.sqrt": np.sqrt,
    "math.rsqrt": rsqrt,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.erf": erf,
}
"""Functions whose result is rounded."""

EXACT: Mapping[str, Callable[..., Array]] = {
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "math.absf": np.abs,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
}
"""Functions whose result is representable."""

FLOATS: Mapping[str, Operation] = {
    **{name: float_operation(function) for name, function in FUNCTIONS.items()},
    **{name: exact_operation(function) for name, function in EXACT.items()},
    "arith.cmpf": cmpf,
    "arith.select": select,
    "math.fma": fma_operation,
    "tt.clampf": clampf,
    "math.clampf": clampf,
}
