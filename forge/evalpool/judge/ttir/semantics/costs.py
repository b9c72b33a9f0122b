# pyright: strict
"""Floating-point operations that an operation of TTIR performs, for the evaluator's report."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.semantics.floats import EXACT, FUNCTIONS
from forge.evalpool.judge.ttir.types import Scalar, element_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.evalpool.judge.ttir.types import Type
    from forge.evalpool.judge.ttir.values import Signature

FREE = frozenset({"arith.negf", "math.absf", "math.copysign"})
"""Operations on the sign, which are modifiers of other instructions."""
FLOPS_PER_ELEMENT: Mapping[str, int] = {
    **{name: 1 for name in (*FUNCTIONS, *EXACT) if name not in FREE},
    "math.fma": 2,
    "math.fpowi": 1,
    "math.sincos": 2,
    "tt.clampf": 2,
    "math.clampf": 2,
    "tt.extern_elementwise": 1,
    "tt.elementwise_inline_asm": 1,
}
"""Operations on floats, by name. An elementary function counts as one, a fused multiply-add as two;
conversions, comparisons, selections and integers as none."""


def flops(name: str, signature: Signature) -> int:
    """Floating-point operations of one instance; reductions and scans are counted by their region.

    A sum of products of integers counts as one of floats does, since tensor cores do both. A pair
    of 4-bit floats in one byte counts as one term.
    """
    if name in ("tt.dot", "tt.dot_scaled"):
        terms = shape_of(signature.operands[0])[-1]
        return 2 * prod(shape_of(signature.results[0])) * terms
    per_element = FLOPS_PER_ELEMENT.get(name, 0)
    if per_element == 0:
        return 0
    return per_element * sum(prod(shape_of(kind)) for kind in signature.results if _is_float(kind))


def _is_float(kind: Type) -> bool:
    element = element_of(kind)
    return isinstance(element, Scalar) and element.is_float
