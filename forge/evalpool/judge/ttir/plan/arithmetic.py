"""Steps of numbers and addresses: by `semantics` on arrays, quicker on sums of lines.

Called by `dispatch`. Integers of blocks keep a sum of lines (`Symbolic`) where an operand is one;
any other operand goes through `array_step`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.program.inline_assembly import refusal
from forge.evalpool.judge.ttir import arrange, symbolic
from forge.evalpool.judge.ttir.semantics import OPERATIONS
from forge.evalpool.judge.ttir.symbolic import Symbolic, Value
from forge.evalpool.judge.ttir.tree import Operation, Pointer, Scalar, Type, element_of, shape_of
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan.planner import Environment, Step


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
        raise Unsupported(f"line {operation.line}: {operation.name} needs a card")
    kinds, operands, results = operation.types, operation.operands, operation.results
    attributes = operation.attributes
    if operation.name == "tt.elementwise_inline_asm" and (
        refused := refusal(str(attributes["asm_string"]), str(attributes["constraints"]))
    ):
        raise Unsupported(f"line {operation.line}: {refused}")
    pairs = tuple(zip(operands, kinds.operands, strict=True))
    if len(results) == 1:
        result = results[0]

        def step(env: Environment, group: Group) -> None:
            given = [array_of(env[value], kind) for value, kind in pairs]
            env[result] = function(given, kinds, attributes)[0]

        return step

    def steps(env: Environment, group: Group) -> None:
        found = function([array_of(env[value], kind) for value, kind in pairs], kinds, attributes)
        for result, value in zip(results, found, strict=True):
            env[result] = value

    return steps


SUMS: dict[str, Callable[[Any, Any, int], Symbolic | None]] = {
    "arith.addi": symbolic.add,
    "arith.subi": symbolic.subtract,
    "arith.muli": symbolic.multiply,
    "arith.divsi": symbolic.divide,
    "arith.divui": symbolic.divide,
    "arith.remsi": symbolic.remainder,
    "arith.remui": symbolic.remainder,
}
WIDTHS = frozenset({"arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast"})


def sum_step(operation: Operation) -> Step:
    """Sums where an operand is one."""
    slow = array_step(operation)
    a, b = operation.operands
    (result,) = operation.results
    function = SUMS[operation.name]
    bits = scalar_of(operation.types.results[0]).bits

    def step(env: Environment, group: Group) -> None:
        left, right = env[a], env[b]
        if isinstance(left, Symbolic) or isinstance(right, Symbolic):
            found = function(left, right, bits)
            if found is not None:
                env[result] = found
                return
        slow(env, group)

    return step


def compare_step(operation: Operation) -> Step:
    """A comparison of integers or addresses where an operand is a sum."""
    slow = pointer_step(operation) if has_pointers(operation) else array_step(operation)
    a, b = operation.operands
    (result,) = operation.results
    predicate = operation.attributes["predicate"]

    def step(env: Environment, group: Group) -> None:
        left, right = env[a], env[b]
        if isinstance(left, Symbolic) or isinstance(right, Symbolic):
            found = symbolic.compare(left, right, predicate)
            if found is not None:
                env[result] = found
                return
        slow(env, group)

    return step


def logic_step(operation: Operation) -> Step:
    """The and, or the or, of masks that may be ranges of lines."""
    slow = array_step(operation)
    a, b = operation.operands
    (result,) = operation.results
    function = symbolic.both if operation.name == "arith.andi" else symbolic.either

    def step(env: Environment, group: Group) -> None:
        found = function(env[a], env[b])
        if found is not None and found.ndim == env[a].ndim:
            env[result] = found
            return
        slow(env, group)

    return step


def width_step(operation: Operation) -> Step:
    """A change of width that leaves a sum as it is where it fits."""
    slow = array_step(operation)
    (a,) = operation.operands
    (result,) = operation.results
    bits = scalar_of(operation.types.results[0]).bits
    is_signed = operation.name != "arith.extui"

    def step(env: Environment, group: Group) -> None:
        value = env[a]
        if isinstance(value, Symbolic) and value.fits(bits) and (is_signed or value.low >= 0):
            env[result] = value
        else:
            slow(env, group)

    return step


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


def poison(operation: Operation) -> Step:
    """`ub.poison`: zeros."""
    (result,) = operation.results
    kind = operation.types.results[0]
    element = element_of(kind)
    rank = len(shape_of(kind))

    def step(env: Environment, group: Group) -> None:
        if isinstance(element, Scalar):
            env[result] = np.zeros((1,) * (rank + 1), dtype_of(element))
        else:
            env[result] = Symbolic.constant(0, rank)

    return step


def assume(operation: Operation) -> Step:
    """`tl.assume`: what a card's compiler takes for true must be true, or the kernel means nothing
    there."""
    (condition,) = operation.operands
    line = operation.line

    def step(env: Environment, group: Group) -> None:
        if not np.all(env[condition]):
            raise Unsupported(f"line {line}: tl.assume of something that is false")

    return step


def assertion(operation: Operation) -> Step:
    """`tl.device_assert`, which is in a text only where a kernel asks for it (`debug=True`)."""
    condition = operation.operands[0]
    line = operation.line

    def step(env: Environment, group: Group) -> None:
        if not np.all(env[condition]):
            raise Unsupported(f"line {line}: tl.device_assert of something that is false")

    return step
