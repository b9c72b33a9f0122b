# pyright: strict
"""Steps of arithmetic on whole arrays, by the functions of `semantics`.

Called by `dispatch`, and by the steps with a quicker way for those operands that it does not fit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir import arrange
from forge.evalpool.judge.ttir.contraction.sums import contraction_of, fused
from forge.evalpool.judge.ttir.semantics import OPERATIONS
from forge.evalpool.judge.ttir.semantics.approximate import CARD, on_card
from forge.evalpool.judge.ttir.symbolic import Symbolic
from forge.evalpool.judge.ttir.types import Pointer, Scalar, Type, element_of, shape_of
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.arrange import Value
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan import Environment, Step
    from forge.evalpool.judge.ttir.tree import Operation


F32 = Scalar("f32")


def scalar_of(kind: Type) -> Scalar:
    """The element of a type of numbers. Raises Unsupported for any other."""
    element = element_of(kind)
    if not isinstance(element, Scalar):
        raise Unsupported(f"arithmetic on {kind}")
    return element


def is_block_integer(kind: Type) -> bool:
    """True for blocks of integers wider than a bool."""
    element = element_of(kind)
    is_integer = isinstance(element, Scalar) and not element.is_float and element.name != "i1"
    return is_integer and bool(shape_of(kind))


def has_pointers(operation: Operation) -> bool:
    """True if an operand or a result is a pointer."""
    kinds = (*operation.types.operands, *operation.types.results)
    return any(isinstance(element_of(kind), Pointer) for kind in kinds)


def array_of(value: Value, kind: Type) -> Array:
    """A value as an array of its type; addresses as int64."""
    if not isinstance(value, Symbolic):
        return value
    element = element_of(kind)
    return value.array(dtype_of(element) if isinstance(element, Scalar) else arrange.INT64)


def array_step(operation: Operation) -> Step:
    """The step of an operation of `semantics`."""
    function = OPERATIONS.get(operation.name)
    if function is None:
        raise Unsupported(f"line {operation.line}: {operation.name} has no semantics here")
    kinds, operands, results = operation.types, operation.operands, operation.results
    attributes = operation.attributes
    pairs = tuple(zip(operands, kinds.operands, strict=True))
    if len(results) == 1:
        result = results[0]
        name = operation.name if _is_inexact(operation) else ""

        def step(env: Environment, group: Group) -> None:
            given = [array_of(env[value], kind) for value, kind in pairs]
            found = function(given, kinds, attributes)[0]
            env[result] = on_card(name, found, given) if name and group.launch.as_card else found

        return step

    def steps(env: Environment, group: Group) -> None:
        found = function([array_of(env[value], kind) for value, kind in pairs], kinds, attributes)
        for result, value in zip(results, found, strict=True):
            env[result] = value

    return steps


def contracted_step(operation: Operation) -> Step:
    """A sum of a product, which its launch fuses or not."""
    contraction = contraction_of(operation)
    assert contraction is not None
    plain = array_step(replace(operation, operands=operation.operands[:2]))
    function, operands, (result,) = fused(operation), operation.operands, operation.results
    bit = 1 << contraction.bit

    def step(env: Environment, group: Group) -> None:
        if group.launch.fusion & bit:
            env[result] = function([env[value] for value in operands])
        else:
            plain(env, group)

    return step


def _is_inexact(operation: Operation) -> bool:
    """True for an operation whose result a card rounds otherwise."""
    return operation.name in CARD and element_of(operation.types.results[0]) == F32
