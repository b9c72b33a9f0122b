"""Steps of operations without control flow: numbers, addresses, shapes and memory accesses.

Called by `dispatch`; `evaluate` makes descriptors of arguments of a launch. Integers of blocks keep
a sum of lines (`Symbolic`) where an operand is one; any other operand goes through `array_step`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.program.dialect import refused_assembly
from forge.evalpool.judge.ttir import symbolic
from forge.evalpool.judge.ttir.memory.access import UPDATES, load, store, swap, update
from forge.evalpool.judge.ttir.memory.storages import Access
from forge.evalpool.judge.ttir.plan.planner import Environment, Step, block_of
from forge.evalpool.judge.ttir.semantics import OPERATIONS
from forge.evalpool.judge.ttir.symbolic import Symbolic, Value
from forge.evalpool.judge.ttir.tree import Operation, Pointer, Scalar, Type, element_of, shape_of
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of, fixed, scalar_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.judge.ttir.memory.storages import Group


# --- numbers and addresses


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
    return value.array(dtype_of(element) if isinstance(element, Scalar) else symbolic.INT64)


def array_step(operation: Operation) -> Step:
    """The step of an operation of `semantics`."""
    function = OPERATIONS.get(operation.name)
    if function is None:
        raise Unsupported(f"line {operation.line}: {operation.name} needs a card")
    kinds, operands, results = operation.types, operation.operands, operation.results
    attributes = operation.attributes
    if operation.name == "tt.elementwise_inline_asm" and (
        refused := refused_assembly(str(attributes["asm_string"]), str(attributes["constraints"]))
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


def _quick(operation: Operation, function: Callable[[Any, Any], Value | None], slow: Step) -> Step:
    """A step of two operands by a function, or by another step where that answers None."""
    a, b = operation.operands
    (result,) = operation.results

    def step(env: Environment, group: Group) -> None:
        found = function(env[a], env[b])
        if found is None:
            slow(env, group)
        else:
            env[result] = found

    return step


def _has_sum(left: Value, right: Value) -> bool:
    return isinstance(left, Symbolic) or isinstance(right, Symbolic)


def sum_step(operation: Operation) -> Step:
    """Sums where an operand is one."""
    function = SUMS[operation.name]
    bits = scalar_of(operation.types.results[0]).bits

    def summed(left: Value, right: Value) -> Symbolic | None:
        return function(left, right, bits) if _has_sum(left, right) else None

    return _quick(operation, summed, array_step(operation))


def compare_step(operation: Operation) -> Step:
    """A comparison of integers or addresses where an operand is a sum."""
    slow = pointer_step(operation) if has_pointers(operation) else array_step(operation)
    predicate = operation.attributes["predicate"]

    def compared(left: Value, right: Value) -> Array | None:
        return symbolic.compare(left, right, predicate) if _has_sum(left, right) else None

    return _quick(operation, compared, slow)


def logic_step(operation: Operation) -> Step:
    """The and, or the or, of masks that may be ranges of lines."""
    function = symbolic.both if operation.name == "arith.andi" else symbolic.either

    def joined(left: Array, right: Array) -> Array | None:
        found = function(left, right)
        return found if found is not None and found.ndim == left.ndim else None

    return _quick(operation, joined, array_step(operation))


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


def addptr(operation: Operation) -> Step:
    """`tt.addptr`: an address plus a number of elements."""
    a, b = operation.operands
    (result,) = operation.results
    size = _pointee_bytes(operation.types.operands[0])

    def step(env: Environment, group: Group) -> None:
        env[result] = env[a].plus(symbolic.sum_of(env[b]).times(size))

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
        env[result] = env[source].array(symbolic.INT64) if is_number else env[source]

    return step


def _select(operation: Operation) -> Step:
    condition, a, b = operation.operands
    (result,) = operation.results

    def step(env: Environment, group: Group) -> None:
        mask: Array = env[condition]
        if mask.size == 1:
            env[result] = env[a] if mask.flat[0] else env[b]
            return
        left: Array = env[a].array(symbolic.INT64)
        right: Array = env[b].array(symbolic.INT64)
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


# --- shapes


AXES = {"x": 0, "y": 1, "z": 2, 0: 0, 1: 1, 2: 2}


def make_range(operation: Operation) -> Step:
    """`tt.make_range`: a line of numbers."""
    start, end = operation.attributes["start"], operation.attributes["end"]
    (result,) = operation.results
    line = fixed(np.arange(start, end, dtype=np.int64)[None])
    values = Symbolic((line,), start, end - 1)

    def step(env: Environment, group: Group) -> None:
        env[result] = values

    return step


def program_id(operation: Operation) -> Step:
    """`tt.get_program_id`"""
    axis = AXES[operation.attributes["axis"]]
    (result,) = operation.results

    def step(env: Environment, group: Group) -> None:
        env[result] = group.program_ids(axis)

    return step


def num_programs(operation: Operation) -> Step:
    """`tt.get_num_programs`"""
    axis = AXES[operation.attributes["axis"]]
    (result,) = operation.results

    def step(env: Environment, group: Group) -> None:
        env[result] = np.array([group.launch.grid[axis]], np.int32)

    return step


def splat(operation: Operation) -> Step:
    """`tt.splat`: a scalar as a block."""
    (a,), (result,) = operation.operands, operation.results
    kind = operation.types.results[0]
    rank = len(shape_of(kind))
    is_sum = is_block_integer(kind)

    def step(env: Environment, group: Group) -> None:
        value = symbolic.splat(env[a], rank)
        env[result] = Symbolic.of(value) if is_sum and not isinstance(value, Symbolic) else value

    return step


def unsplat(operation: Operation) -> Step:
    """`tt.unsplat`: a block of one element as a scalar."""
    (a,), (result,) = operation.operands, operation.results
    kind = operation.types.operands[0]

    def step(env: Environment, group: Group) -> None:
        value = env[a]
        if isinstance(element_of(kind), Pointer):
            env[result] = symbolic.mapped(value, lambda array: array.reshape(-1))
        else:
            env[result] = array_of(value, kind).reshape(-1)

    return step


def broadcast(operation: Operation) -> Step:
    """`tt.broadcast`: axes of one element stand for any number of them."""
    (a,), (result,) = operation.operands, operation.results

    def step(env: Environment, group: Group) -> None:
        env[result] = env[a]

    return step


def rearranged(operation: Operation) -> Step:
    """expand_dims, reshape, trans"""
    (a,), (result,) = operation.operands, operation.results
    attributes = operation.attributes
    before = shape_of(operation.types.operands[0])
    after = shape_of(operation.types.results[0])

    def expand(env: Environment, group: Group) -> None:
        env[result] = symbolic.expand_dims(env[a], attributes["axis"])

    def transpose(env: Environment, group: Group) -> None:
        env[result] = symbolic.transpose(env[a], attributes["order"])

    def reshape(env: Environment, group: Group) -> None:
        env[result] = symbolic.reshape(env[a], before, after)

    steps = {"tt.expand_dims": expand, "tt.trans": transpose, "tt.reshape": reshape}
    return steps[operation.name]


# --- memory


def _memory_element(kind: Type, operation: Operation) -> Scalar:
    element = element_of(kind)
    if isinstance(element, Pointer) and isinstance(element.pointee, Scalar):
        return element.pointee
    raise Unsupported(f"line {operation.line}: {operation.name} of {kind}")


def _through(operation: Operation, mask: int) -> Callable[[Environment, Group], Access]:
    """Makes the access through an operation's pointers; the operand at `mask` is its mask."""
    pointer, chosen = operation.operands[0], operation.operands[mask : mask + 1]
    element = _memory_element(operation.types.operands[0], operation)

    def access(env: Environment, group: Group) -> Access:
        return Access(group, env[pointer], env[chosen[0]] if chosen else None, operation, element)

    return access


def load_step(operation: Operation) -> Step:
    """`tt.load`"""
    access, other = _through(operation, mask=1), operation.operands[2:]
    (result,) = operation.results
    kind = operation.types.results[0]

    def step(env: Environment, group: Group) -> None:
        rest = array_of(env[other[0]], kind) if other else None
        env[result] = load(access(env, group), rest)

    return step


def store_step(operation: Operation) -> Step:
    """`tt.store`"""
    access, value = _through(operation, mask=2), operation.operands[1]
    kind = operation.types.operands[1]

    def step(env: Environment, group: Group) -> None:
        store(access(env, group), array_of(env[value], kind))

    return step


def atomic_step(operation: Operation, used: frozenset[int]) -> Step:
    """The step of tt.atomic_rmw or tt.atomic_cas; `used` are the values that something reads."""
    if operation.name == "tt.atomic_rmw":
        return _update_step(operation, is_used=not used.isdisjoint(operation.results))
    if operation.name == "tt.atomic_cas":
        return _swap_step(operation)
    raise Unsupported(f"line {operation.line}: {operation.name}")


def _update_step(operation: Operation, *, is_used: bool) -> Step:
    access, operand = _through(operation, mask=2), operation.operands[1]
    results = operation.results
    element = _memory_element(operation.types.operands[0], operation)
    name = _update_name(operation, element)

    def step(env: Environment, group: Group) -> None:
        values = array_of(env[operand], element)
        env[results[0]] = update(access(env, group), values, name, is_used=is_used)

    return step


def _update_name(operation: Operation, element: Scalar) -> str:
    name = operation.attributes["operation"]
    name = "fadd" if name == "add" and element.is_float else name
    if name not in UPDATES:
        raise Unsupported(f"line {operation.line}: atomic {name}")
    return name


def _swap_step(operation: Operation) -> Step:
    access, (_, expected, desired) = _through(operation, mask=3), operation.operands
    (result,) = operation.results
    kind = operation.types.operands[1]

    def step(env: Environment, group: Group) -> None:
        before, after = array_of(env[expected], kind), array_of(env[desired], kind)
        env[result] = swap(access(env, group), before, after)

    return step


ALIGNMENT = 16
"""Bytes that a card's unit for descriptors takes as one: it drops the rest of an address."""
UNALIGNED_WORDS = (
    "a tensor descriptor whose base, or a stride other than the last one, is no multiple of"
    f" {ALIGNMENT} bytes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDescriptor:
    """The value of a descriptor."""

    base: Symbolic
    """Address, without block axes."""
    shape: tuple[Array, ...]
    strides: tuple[Array, ...]
    """In elements, `[n or 1]` each, as the sizes."""
    padding: float = 0.0
    """Value of what lies outside the shape."""


def make_descriptor(operation: Operation) -> Step:
    """`tt.make_tensor_descriptor`"""
    base, *rest = operation.operands
    (result,) = operation.results
    rank = len(rest) // 2
    is_nan = "nan" in str(operation.attributes.get("padding", "")).lower()
    size = _element_bytes(operation.types.results[0])

    def step(env: Environment, group: Group) -> None:
        numbers = [env[value].astype(np.int64) for value in rest]
        starts = [env[base].array(symbolic.INT64), *_steps(numbers, rank, size)]
        if any(np.any(one % ALIGNMENT) for one in starts):
            raise Unsupported(f"line {operation.line}: {UNALIGNED_WORDS}")
        env[result] = TensorDescriptor(
            base=env[base],
            shape=tuple(numbers[:rank]),
            strides=tuple(numbers[rank:]),
            padding=float("nan") if is_nan else 0.0,
        )

    return step


def _element_bytes(kind: Type) -> int:
    return scalar_of(block_of(kind)).num_bytes


def _steps(numbers: list[Array], rank: int, size: int) -> list[Array]:
    """Bytes from one element to the next along each axis but the last, as far as it has several."""
    pairs = zip(numbers[: rank - 1], numbers[rank : 2 * rank - 1], strict=True)
    return [np.where(length > 1, stride * size, 0) for length, stride in pairs]


def _window(
    operation: Operation, starts: Sequence[int], kind: Type
) -> Callable[[Environment, Group], Access]:
    """Makes the access to a block through a descriptor, the first operand, at some indices."""
    target, element, shape = operation.operands[0], scalar_of(kind), _block_shape(operation, kind)
    rank = len(shape)

    def window(env: Environment, group: Group) -> Access:
        descriptor: TensorDescriptor = env[target]
        addresses = descriptor.base.mapped(lambda term: term.reshape(-1, *(1,) * rank))
        mask: Array | None = None
        for axis, start in enumerate(starts):
            index = _along(env[start], axis, shape)
            limit = descriptor.shape[axis].reshape(-1, *(1,) * rank)
            for found in (
                symbolic.compare(index, Symbolic.constant(0, rank), "sge"),
                symbolic.compare(index, Symbolic.of(limit), "slt"),
            ):
                assert found is not None
                mask = found if mask is None else _and(mask, found)
            stride = descriptor.strides[axis]
            if int(stride.min()) == int(stride.max()):
                offset = index.times(int(stride[0]) * element.num_bytes)
            else:
                wide = stride.reshape(-1, *(1,) * rank) * element.num_bytes
                offset = Symbolic.of(index.array(symbolic.INT64) * wide)
            addresses = addresses.plus(offset)
        return Access(group, addresses, mask, operation, element)

    return window


def _and(a: Array, b: Array) -> Array:
    found = symbolic.both(a, b)
    return a & b if found is None else found


def _along(start: Any, axis: int, shape: tuple[int, ...]) -> Symbolic:
    """Indices of a block along an axis: from a scalar on, or a given row of them."""
    rank = len(shape)
    form = [1] * (rank + 1)
    form[axis + 1] = shape[axis]
    if isinstance(start, Symbolic) or start.ndim > 1:  # x_offsets of a gather
        rows = array_of(start, Scalar("i32")).astype(np.int64)
        return Symbolic.of(np.broadcast_to(rows, (len(rows), shape[axis])).reshape(-1, *form[1:]))
    first = Symbolic.of(start.reshape(-1, *(1,) * rank))
    line = np.arange(shape[axis], dtype=np.int64).reshape(form)
    return first.plus(Symbolic((line,), 0, shape[axis] - 1))


def descriptor_load(operation: Operation) -> Step:
    """`tt.descriptor_load` and `tt.descriptor_gather`"""
    source, *starts = operation.operands
    (result,) = operation.results
    kind = operation.types.results[0]
    block, dtype = _block_shape(operation, kind), dtype_of(scalar_of(kind))
    window = _window(operation, starts, kind)

    def step(env: Environment, group: Group) -> None:
        other = np.full((1,) * (len(block) + 1), env[source].padding, dtype)
        env[result] = symbolic.reshape(load(window(env, group), other), block, shape_of(kind))

    return step


def descriptor_store(operation: Operation) -> Step:
    """`tt.descriptor_store`, `tt.descriptor_scatter`, and the atomic update of a block,
    `tt.descriptor_reduce`."""
    _, *starts, value = operation.operands
    kind = operation.types.operands[-1]
    block = _block_shape(operation, kind)
    window = _window(operation, starts, kind)
    is_update = operation.name == "tt.descriptor_reduce"
    name = _update_name(operation, scalar_of(kind)) if is_update else ""

    def step(env: Environment, group: Group) -> None:
        values = symbolic.reshape(array_of(env[value], kind), shape_of(kind), block)
        assert not isinstance(values, Symbolic)
        if is_update:
            update(window(env, group), values, name, is_used=False)
        else:
            store(window(env, group), values)

    return step


def _block_shape(operation: Operation, kind: Type) -> tuple[int, ...]:
    """Shape of the window: the descriptor's block, or the rows of a gather or scatter."""
    if operation.name in ("tt.descriptor_gather", "tt.descriptor_scatter"):
        return shape_of(kind)
    return block_of(operation.types.operands[0]).shape
