"""Steps of loads, stores and atomic updates, through pointers and tensor descriptors.

Called by `dispatch`; `evaluate` makes descriptors of arguments of a launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir import arrange, symbolic
from forge.evalpool.judge.ttir.memory.access import load, store
from forge.evalpool.judge.ttir.memory.atomics import UPDATES, swap, update
from forge.evalpool.judge.ttir.plan.arithmetic import array_of, scalar_of
from forge.evalpool.judge.ttir.plan.planner import Environment, Step, block_of
from forge.evalpool.judge.ttir.symbolic import Symbolic
from forge.evalpool.judge.ttir.tree import Operation, Pointer, Scalar, Type, element_of, shape_of
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of, memory_dtype

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.memory.launch import Group


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


def atomic_step(operation: Operation, used: frozenset[int]) -> Step:
    """The step of tt.atomic_rmw or tt.atomic_cas; `used` are the values that something reads."""
    if operation.name == "tt.atomic_rmw":
        return _update_step(operation, is_used=not used.isdisjoint(operation.results))
    if operation.name == "tt.atomic_cas":
        return _swap_step(operation)
    raise Unsupported(f"line {operation.line}: {operation.name}")


def _raw(value: Any, element: Scalar) -> Array:
    return value.array(memory_dtype(element)) if isinstance(value, Symbolic) else value


def _update_step(operation: Operation, *, is_used: bool) -> Step:
    pointer, operand, *rest = operation.operands
    mask = rest[0] if rest else None
    results = operation.results
    element = _memory_element(operation.types.operands[0], operation)
    name = operation.attributes["operation"]
    if name not in UPDATES:
        raise Unsupported(f"line {operation.line}: atomic {name}")

    def step(env: Environment, group: Group) -> None:
        env[results[0]] = update(
            group,
            env[pointer],
            _raw(env[operand], element),
            None if mask is None else env[mask],
            operation,
            element,
            name,
            is_used=is_used,
        )

    return step


def _swap_step(operation: Operation) -> Step:
    pointer, expected, desired = operation.operands
    (result,) = operation.results
    element = _memory_element(operation.types.operands[0], operation)

    def step(env: Environment, group: Group) -> None:
        before, after = _raw(env[expected], element), _raw(env[desired], element)
        env[result] = swap(group, env[pointer], before, after, operation, element)

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
        starts = [env[base].array(arrange.INT64), *_steps(numbers, rank, size)]
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
    descriptor: TensorDescriptor, starts: list[Any], shape: tuple[int, ...], size: int
) -> tuple[Symbolic, Array | None]:
    """Addresses and mask of a block of a descriptor at some indices."""
    rank = len(shape)
    addresses = descriptor.base.mapped(lambda term: term.reshape(-1, *(1,) * rank))
    mask: Array | None = None
    for axis, start in enumerate(starts):
        index = _along(start, axis, shape)
        limit = descriptor.shape[axis].reshape(-1, *(1,) * rank)
        for found in (
            symbolic.compare(index, Symbolic.constant(0, rank), "sge"),
            symbolic.compare(index, Symbolic.of(limit), "slt"),
        ):
            assert found is not None
            mask = found if mask is None else _and(mask, found)
        stride = descriptor.strides[axis]
        if int(stride.min()) == int(stride.max()):
            offset = index.times(int(stride[0]) * size)
        else:
            wide = stride.reshape(-1, *(1,) * rank) * size
            offset = Symbolic.of(index.array(arrange.INT64) * wide)
        addresses = addresses.plus(offset)
    return addresses, mask


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
    block = _block_shape(operation, kind)
    element = scalar_of(kind)

    def step(env: Environment, group: Group) -> None:
        descriptor: TensorDescriptor = env[source]
        addresses, mask = _window(
            descriptor, [env[one] for one in starts], block, element.num_bytes
        )
        other = np.full((1,) * (len(block) + 1), descriptor.padding, dtype_of(element))
        found = load(group, addresses, mask, other, operation, element)
        env[result] = arrange.reshape(found, block, shape_of(kind))

    return step


def descriptor_store(operation: Operation) -> Step:
    """`tt.descriptor_store` and `tt.descriptor_scatter`"""
    target, *starts, value = operation.operands
    kind = operation.types.operands[-1]
    block = _block_shape(operation, kind)
    element = scalar_of(kind)

    def step(env: Environment, group: Group) -> None:
        addresses, mask = _window(
            env[target], [env[one] for one in starts], block, element.num_bytes
        )
        values = arrange.reshape(array_of(env[value], kind), shape_of(kind), block)
        assert not isinstance(values, Symbolic)
        store(group, addresses, values, mask, operation, element)

    return step


def descriptor_reduce(operation: Operation) -> Step:
    """`tt.descriptor_reduce`: an atomic update of a block."""
    target, *starts, value = operation.operands
    kind = operation.types.operands[-1]
    block = _block_shape(operation, kind)
    element = scalar_of(kind)
    name = operation.attributes["operation"]
    name = "fadd" if name == "add" and element.is_float else name
    if name not in UPDATES:
        raise Unsupported(f"line {operation.line}: atomic {name}")

    def step(env: Environment, group: Group) -> None:
        addresses, mask = _window(
            env[target], [env[one] for one in starts], block, element.num_bytes
        )
        values = arrange.reshape(array_of(env[value], kind), shape_of(kind), block)
        assert not isinstance(values, Symbolic)
        update(group, addresses, values, mask, operation, element, name, is_used=False)

    return step


def _block_shape(operation: Operation, kind: Type) -> tuple[int, ...]:
    """Shape of the window: the descriptor's block, or the rows of a gather or scatter."""
    if operation.name in ("tt.descriptor_gather", "tt.descriptor_scatter"):
        return shape_of(kind)
    return block_of(operation.types.operands[0]).shape
