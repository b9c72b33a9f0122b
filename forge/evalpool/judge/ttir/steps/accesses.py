# pyright: strict
"""Steps of loads and stores through pointers. Called by `dispatch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.memory.access import load, store
from forge.evalpool.judge.ttir.steps.arrays import array_of
from forge.evalpool.judge.ttir.types import Pointer, Scalar, Type, element_of
from forge.evalpool.judge.ttir.values import Unsupported

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan import Environment, Step
    from forge.evalpool.judge.ttir.tree import Operation


def _memory_element(kind: Type, operation: Operation) -> Scalar:
    element = element_of(kind)
    if isinstance(element, Pointer) and isinstance(element.pointee, Scalar):
        return element.pointee
    raise Unsupported(f"line {operation.line}: {operation.name} of {kind}")


def load_step(operation: Operation) -> Step:
    """`tt.load`"""
    pointer, *rest = operation.operands
    mask = rest[0] if rest else None
    other = rest[1] if len(rest) > 1 else None
    (result,) = operation.results
    element = _memory_element(operation.types.operands[0], operation)
    kind = operation.types.results[0]

    def step(env: Environment, group: Group) -> None:
        env[result] = load(
            group,
            env[pointer],
            None if mask is None else env[mask],
            None if other is None else array_of(env[other], kind),
            operation,
            element,
        )

    return step


def store_step(operation: Operation) -> Step:
    """`tt.store`"""
    pointer, value, *rest = operation.operands
    mask = rest[0] if rest else None
    element = _memory_element(operation.types.operands[0], operation)
    kind = operation.types.operands[1]

    def step(env: Environment, group: Group) -> None:
        store(
            group,
            env[pointer],
            array_of(env[value], kind),
            None if mask is None else env[mask],
            operation,
            element,
        )

    return step
