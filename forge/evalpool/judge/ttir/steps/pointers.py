# pyright: strict
"""Steps of addresses: offsets, casts, comparisons and selections of pointers.

Called by `dispatch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir import arrange
from forge.evalpool.judge.ttir.semantics import OPERATIONS
from forge.evalpool.judge.ttir.steps.arrays import array_of
from forge.evalpool.judge.ttir.symbolic import Symbolic
from forge.evalpool.judge.ttir.types import Pointer, Scalar, Type, element_of, shape_of
from forge.evalpool.judge.ttir.values import Array, Unsupported

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.arrange import Value
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan import Environment, Step
    from forge.evalpool.judge.ttir.tree import Operation


def _pointee_bytes(kind: Type) -> int:
    element = element_of(kind)
    assert isinstance(element, Pointer)
    pointee = element_of(element.pointee)
    return pointee.num_bytes if isinstance(pointee, Scalar) else 8


def sum_of(value: Value) -> Symbolic:
    """An integer value as a sum."""
    return value if isinstance(value, Symbolic) else Symbolic.of(value)


def addptr(operation: Operation) -> Step:
    """`tt.addptr`: an address plus a number of elements."""
    a, b = operation.operands
    (result,) = operation.results
    size = _pointee_bytes(operation.types.operands[0])

    def step(env: Environment, group: Group) -> None:
        env[result] = env[a].plus(sum_of(env[b]).times(size))

    return step


def pointer_step(operation: Operation) -> Step:
    """Operations on addresses that do not depend on the type of the target."""
    name, operands, (result,) = operation.name, operation.operands, operation.results
    if name in ("tt.bitcast", "tt.ptr_to_int"):
        is_number = name == "tt.ptr_to_int" and not shape_of(operation.types.results[0])
        return _alias(operands[0], result, is_number=is_number)
    if name == "arith.select":
        return _select(operation)
    if name == "arith.cmpi":
        function = OPERATIONS[name]

        def compare(env: Environment, group: Group) -> None:
            arrays = [array_of(env[value], Scalar("i64")) for value in operands]
            env[result] = function(arrays, operation.types, operation.attributes)[0]

        return compare
    raise Unsupported(f"line {operation.line}: {name} of pointers")


def _alias(source: int, result: int, *, is_number: bool) -> Step:
    def step(env: Environment, group: Group) -> None:
        env[result] = env[source].array(arrange.INT64) if is_number else env[source]

    return step


def _select(operation: Operation) -> Step:
    condition, a, b = operation.operands
    (result,) = operation.results

    def step(env: Environment, group: Group) -> None:
        mask: Array = env[condition]
        if mask.size == 1:
            env[result] = env[a] if mask.flat[0] else env[b]
            return
        left: Array = env[a].array(arrange.INT64)
        right: Array = env[b].array(arrange.INT64)
        mask = mask.reshape(mask.shape + (1,) * (left.ndim - mask.ndim))
        chosen: Array = np.where(mask, left, right)
        env[result] = Symbolic.of(chosen)

    return step
