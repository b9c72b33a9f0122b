"""Contraction: finds sums with a product as an operand, and computes them with one rounding.

With `enable_fp_fusion`, Triton's default, LLVM and ptxas compute `a * b + c` with one rounding.
LLVM does so within a basic block, also where something else reads the product, and of two products
it fuses the one with fewer uses, else the left one (`visitFADDForFMACombine` and its counterpart
for differences, of a target that fuses aggressively, as NVPTX is). Layouts decide in ways that TTIR
does not show: elements of a sum along an axis are fused where one thread has them, and blocks that
move between threads are not. So each launch chooses which sums are fused (`Fusion`), and a program
must be right with all of them, with none and with any others.

Called by the planner; imports no plan and no memory. Not covered: products of one function that
another adds (Triton inlines both), negated products, and sums of `tt.reduce`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from forge.evalpool.judge.ttir.semantics.exact import fma
from forge.evalpool.judge.ttir.semantics.formats import scalar_of, to_float
from forge.evalpool.judge.ttir.tree import (
    BasicBlock,
    Function,
    Operation,
    Region,
    Scalar,
    element_of,
    shape_of,
)

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.values import Array

Fusion: TypeAlias = int
"""Bit k: the sums with number k, modulo NUM_BITS, are fused."""
NUM_BITS = 32
ALL: Fusion = (1 << NUM_BITS) - 1
NONE: Fusion = 0

SUMS = frozenset({"arith.addf", "arith.subf"})
VIEWS = frozenset({"tt.splat", "tt.broadcast", "tt.expand_dims"})
"""Operations through which the elements of a product stay with their threads."""
ATTRIBUTE = "contraction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """A sum that may be fused; its operands are followed by the factors of the product."""

    place: int
    """Position of the product among the operands of the sum, 0 or 1."""
    bit: int
    """Its number, modulo NUM_BITS."""
    views: tuple[Operation, ...]
    """Operations between the product and the sum, in order."""


def contracted(function: Function) -> Function:
    """The function with the factors of products at the sums that may be fused."""
    rewriter = _Rewriter(function)
    return (
        replace(function, body=rewriter.region(function.body)) if rewriter.is_needed else function
    )


class _Rewriter:
    """Rewrites one function."""

    def __init__(self, function: Function) -> None:
        operations = list(_operations(function.body))
        self._makers: Mapping[int, Operation] = {
            one.results[0]: one
            for one in operations
            if one.name in VIEWS or one.name == "arith.mulf"
        }
        self._num_uses = Counter(value for one in operations for value in one.operands)
        self._num_found = 0
        self.is_needed = any(one.name in SUMS for one in operations) and bool(self._makers)

    def region(self, region: Region) -> Region:
        """The region with its sums rewritten."""
        return replace(region, blocks=tuple(self._block(one) for one in region.blocks))

    def _block(self, block: BasicBlock) -> BasicBlock:
        return replace(block, operations=tuple(self._operation(one) for one in block.operations))

    def _operation(self, operation: Operation) -> Operation:
        if operation.regions:
            return replace(operation, regions=tuple(self.region(one) for one in operation.regions))
        if operation.name not in SUMS or not _is_float(operation):
            return operation
        found = [self._product(value) for value in operation.operands]
        products = [(place, one) for place, one in enumerate(found) if one is not None]
        if not products:
            return operation
        place, (product, views) = min(
            products, key=lambda one: self._num_uses[operation.operands[one[0]]]
        )
        bit = self._num_found % NUM_BITS
        self._num_found += 1
        contraction = Contraction(place=place, bit=bit, views=views)
        return replace(
            operation,
            operands=(*operation.operands, *product.operands),
            attributes={**operation.attributes, ATTRIBUTE: contraction},
        )

    def _product(self, value: int) -> tuple[Operation, tuple[Operation, ...]] | None:
        """The product that a value is, and the views of it in order."""
        views: list[Operation] = []
        while (maker := self._makers.get(value)) is not None:
            if maker.name == "arith.mulf":
                return maker, tuple(reversed(views))
            views.append(maker)
            (value,) = maker.operands
        return None


def _is_float(operation: Operation) -> bool:
    element = element_of(operation.types.results[0])
    return isinstance(element, Scalar) and element.name in ("f16", "bf16", "f32", "f64")


def _operations(region: Region) -> Iterable[Operation]:
    for block in region.blocks:
        for operation in block.operations:
            yield operation
            for inner in operation.regions:
                yield from _operations(inner)


def rank_of(view: Operation) -> int:
    """Number of axes of a view's result."""
    return len(shape_of(view.types.results[0]))


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
