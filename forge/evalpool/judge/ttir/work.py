# pyright: strict
"""The arithmetic of one operation in one instance, and the unit of a card that does it.

    fp32         additions, products and functions of floats; products of blocks in float32
    tf32, half   products of blocks on a card's units for matrices

Called by `plan`. Not counted: integers, and what only moves elements.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.types import Scalar, element_of, shape_of

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.tree import Operation
    from forge.evalpool.judge.ttir.types import Type

FP32, TF32, HALF = "fp32", "tf32", "half"
ARITHMETIC = ("arith.", "math.", "tt.extern_elementwise", "tt.precise_", "tt.clampf")
SEVERAL = {"tf32x3": 3, "bf16x3": 3, "bf16x6": 6}
"""Products that one of float32 becomes, by the precision that it asks for."""
MOVES = frozenset({"arith.constant", "arith.select", "arith.bitcast", "arith.extf", "arith.truncf"})


def work_of(operation: Operation) -> tuple[str, float]:
    """The unit and the number of floating-point operations."""
    match operation.name:
        case "tt.dot":
            return _unit(operation), _product(operation, operation.types.operands[1])
        case "tt.dot_scaled":
            packed = 2 if operation.attributes.get("lhs") == "e2m1" else 1
            return HALF, packed * _product(operation, operation.types.results[0])
        case "tt.reduce" | "tt.scan":
            return FP32, float(sum(prod(shape_of(kind)) for kind in operation.types.operands))
        case "tt.elementwise_inline_asm":
            text, packed = (
                operation.attributes["asm_string"],
                operation.attributes["packed_element"],
            )
            instructions = max(1, str(text).count(";"))
            return FP32, instructions * prod(shape_of(operation.types.results[0])) / max(1, packed)
        case name if name in MOVES or not name.startswith(ARITHMETIC):
            return FP32, 0.0
        case _:
            results = operation.types.results
            return FP32, float(sum(prod(shape_of(one)) for one in results if _is_float(one)))


def _product(operation: Operation, columns: Type) -> float:
    """Operations of a product of blocks: rows and terms of the first, columns of another block;
    several products where one stands for more bits."""
    times = SEVERAL.get(operation.attributes.get("inputPrecision", ""), 1)
    return 2.0 * times * prod(shape_of(operation.types.operands[0])) * shape_of(columns)[-1]


def _unit(operation: Operation) -> str:
    element = element_of(operation.types.operands[0])
    if not isinstance(element, Scalar) or element.name not in ("f32", "f64"):
        return HALF
    precision = str(operation.attributes.get("inputPrecision", ""))
    return TF32 if precision.startswith("tf32") else HALF if precision in SEVERAL else FP32


def _is_float(kind: Type) -> bool:
    element = element_of(kind)
    return isinstance(element, Scalar) and element.is_float
