"""Computes `a * b + c` with one rounding, for sums whose launch has chosen to fuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.contraction.rewrite import ATTRIBUTE, Contraction, rank_of
from forge.evalpool.judge.ttir.semantics.exact import fma
from forge.evalpool.judge.ttir.semantics.formats import scalar_of, to_float

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.tree import Operation
    from forge.evalpool.judge.ttir.values import Array


def contraction_of(operation: Operation) -> Contraction | None:
    """The contraction of a sum that may be fused; None for any other operation."""
    return operation.attributes.get(ATTRIBUTE)


def fused(operation: Operation) -> Callable[[list[Any]], Array]:
    """The sum as a function of its operands, the factors behind them.

    The product of two float32 is exact in float64, where the sum is rounded before it is rounded
    again: a result halfway between two float32 may be the other one, once in 2^29.
    """
    found = contraction_of(operation)
    assert found is not None
    kind = scalar_of(operation.types.results[0])
    is_difference = operation.name == "arith.subf"
    negates_product = is_difference and found.place == 1
    negates_other = is_difference and found.place == 0
    views, other = found.views, 1 - found.place

    def compute(operands: list[Any]) -> Array:
        a, b = (_viewed(one, views) for one in operands[2:])
        c = operands[other]
        if kind.name == "f64":
            return fma(-a if negates_product else a, b, -c if negates_other else c)
        total = a.astype(np.float64) * b
        if negates_product:
            total = c - total
        elif negates_other:
            total = total - c
        else:
            total = total + c
        return to_float(total.astype(np.float32) if kind.name == "f32" else total, kind)

    return compute


def _viewed(value: Array, views: tuple[Operation, ...]) -> Array:
    for view in views:
        if view.name == "tt.splat":
            value = value.reshape(-1, *(1,) * rank_of(view))
        elif view.name == "tt.expand_dims":
            value = np.expand_dims(value, view.attributes["axis"] + 1)
    return value
