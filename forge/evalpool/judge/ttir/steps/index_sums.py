# pyright: strict
"""Steps of integers of blocks that keep a sum of lines (`Symbolic`) where an operand is one.

Called by `dispatch`. Any other operand goes through `array_step`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.ttir import integers
from forge.evalpool.judge.ttir.steps.arrays import array_step, has_pointers, scalar_of
from forge.evalpool.judge.ttir.steps.pointers import pointer_step
from forge.evalpool.judge.ttir.symbolic import Symbolic

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan import Environment, Step
    from forge.evalpool.judge.ttir.tree import Operation

SUMS: dict[str, Callable[[Any, Any, int], Symbolic | None]] = {
    "arith.addi": integers.add,
    "arith.subi": integers.subtract,
    "arith.muli": integers.multiply,
    "arith.divsi": integers.divide,
    "arith.divui": integers.divide,
    "arith.remsi": integers.remainder,
    "arith.remui": integers.remainder,
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
            found = integers.compare(left, right, predicate)
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
    function = integers.both if operation.name == "arith.andi" else integers.either

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
