# pyright: strict
"""Contraction of a product and the sum that takes it, as a card's compiler does.

`a * b + c` is rounded once there. A kernel that is right alone where it is rounded twice is wrong
on a card, so a launch may ask for either (`Launch.fuses`). Only products in float32 and
float64, in the block of the sum, count; of two products in a sum, the first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.ttir.semantics.exact import fma
from forge.evalpool.judge.ttir.types import Scalar, element_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.ttir.plan import Environment, Step
    from forge.evalpool.judge.ttir.tree import Operation

SUMS = ("arith.addf", "arith.subf")
WIDE = ("f32", "f64")
FACTORS = "contracted"
"""Attribute of a sum with a product: the position of that among its operands. The two factors are
behind its own operands, so that they are kept until then."""


def with_products(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The same operations, in which each sum of a product has its factors."""
    factors: dict[int, tuple[int, int]] = {}
    made: list[Operation] = []
    for one in operations:
        if one.name == "arith.mulf" and _is_wide(one):
            factors[one.results[0]] = (one.operands[0], one.operands[1])
        elif one.name == "tt.splat" and one.operands[0] in factors:
            factors[one.results[0]] = factors[one.operands[0]]
        elif one.name in SUMS and _is_wide(one):
            place = next((at for at, value in enumerate(one.operands) if value in factors), None)
            if place is not None:
                operands = (*one.operands, *factors[one.operands[place]])
                one = replace(one, operands=operands, attributes={**one.attributes, FACTORS: place})
        made.append(one)
    return tuple(made)


def is_contractable(operation: Operation) -> bool:
    """True for a sum of `with_products` that has factors."""
    return FACTORS in operation.attributes


def without_product(operation: Operation) -> Operation:
    """The sum alone."""
    return replace(operation, operands=operation.operands[:2])


def contracted_step(operation: Operation, plain: Step) -> Step:
    """The step of a sum with factors; `plain` rounds the product first."""
    place: int = operation.attributes[FACTORS]
    a, b = operation.operands[2:]
    rest, (result,) = operation.operands[1 - place], operation.results
    is_less = operation.name == "arith.subf"
    rank = 1 + len(shape_of(operation.types.results[0]))

    def step(env: Environment, group: Any) -> None:
        if not group.launch.fuses:
            plain(env, group)
            return
        # A factor of a splat has no axes of its own.
        left, right = (
            one.reshape(one.shape + (1,) * (rank - one.ndim)) for one in (env[a], env[b])
        )
        if is_less and place == 1:
            left = -left
        other = -env[rest] if is_less and place == 0 else env[rest]
        env[result] = fma(left, right, other)

    return step


def _is_wide(operation: Operation) -> bool:
    element = element_of(operation.types.results[0])
    return isinstance(element, Scalar) and element.name in WIDE
