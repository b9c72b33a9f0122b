# pyright: strict
"""One step for each operation without control flow: arithmetic, addresses, memory, descriptors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir import arrange, integers
from forge.evalpool.judge.ttir.contraction.sums import contraction_of, fused
from forge.evalpool.judge.ttir.control import CONTROL, region_step
from forge.evalpool.judge.ttir.memory.access import load, store
from forge.evalpool.judge.ttir.memory.atomics import UPDATES, atomic_step, update
from forge.evalpool.judge.ttir.semantics import OPERATIONS
from forge.evalpool.judge.ttir.semantics.approximate import CARD, on_card
from forge.evalpool.judge.ttir.symbolic import Symbolic
from forge.evalpool.judge.ttir.types import Pointer, Scalar, Type, element_of, shape_of
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of, fixed

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.ttir.arrange import Value
    from forge.evalpool.judge.ttir.memory.access import Group
    from forge.evalpool.judge.ttir.plan import ControlStep, Environment, Planner, Step
    from forge.evalpool.judge.ttir.tree import Operation

IGNORED = frozenset(
    {
        *("tt.print", "tt.assert", "cf.assert", "gpu.barrier", "ttg.barrier"),
        *("tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents"),
    }
)
"""Operations without an effect on values. Instances have no threads that a barrier could order."""
F32 = Scalar("f32")
AXES = {"x": 0, "y": 1, "z": 2, 0: 0, 1: 1, 2: 2}


def step_of(operation: Operation, planner: Planner) -> tuple[Step | ControlStep | None, bool]:
    """The step of an operation, and True if it is control flow; None where nothing happens.

    Raises:
        Unsupported: the evaluator has no such operation.
    """
    name = operation.name
    if name in IGNORED:
        return None, False
    if name in CONTROL:
        return CONTROL[name](operation, planner), True
    if name in ("tt.reduce", "tt.scan", "tt.map_elementwise"):
        return region_step(operation, planner), False
    if name in OWN:
        return OWN[name](operation), False
    if name.startswith("tt.atomic_"):
        return atomic_step(operation, planner.used), False
    if name in SUMS and _is_block_integer(operation.types.results[0]):
        return _sum_step(operation), False
    if name == "arith.cmpi":
        return _compare_step(operation), False
    if name in ("arith.andi", "arith.ori") and _element(operation.types.results[0]).name == "i1":
        return _logic_step(operation), False
    if name in WIDTHS and _is_block_integer(operation.types.results[0]):
        return _width_step(operation), False
    if _has_pointers(operation):
        return _pointer_step(operation), False
    if contraction_of(operation) is not None:
        return _contracted_step(operation), False
    return array_step(operation), False


def _element(kind: Type) -> Scalar:
    element = element_of(kind)
    if not isinstance(element, Scalar):
        raise Unsupported(f"arithmetic on {kind}")
    return element


def _is_block_integer(kind: Type) -> bool:
    element = element_of(kind)
    is_integer = isinstance(element, Scalar) and not element.is_float and element.name != "i1"
    return is_integer and bool(shape_of(kind))


def _has_pointers(operation: Operation) -> bool:
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


def _contracted_step(operation: Operation) -> Step:
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


# integers of blocks

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


def _sum_step(operation: Operation) -> Step:
    """Sums where an operand is one."""
    slow = array_step(operation)
    a, b = operation.operands
    (result,) = operation.results
    function = SUMS[operation.name]
    bits = _element(operation.types.results[0]).bits

    def step(env: Environment, group: Group) -> None:
        left, right = env[a], env[b]
        if isinstance(left, Symbolic) or isinstance(right, Symbolic):
            found = function(left, right, bits)
            if found is not None:
                env[result] = found
                return
        slow(env, group)

    return step


def _compare_step(operation: Operation) -> Step:
    slow = _pointer_step(operation) if _has_pointers(operation) else array_step(operation)
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


def _logic_step(operation: Operation) -> Step:
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


def _width_step(operation: Operation) -> Step:
    slow = array_step(operation)
    (a,) = operation.operands
    (result,) = operation.results
    bits = _element(operation.types.results[0]).bits
    is_signed = operation.name != "arith.extui"

    def step(env: Environment, group: Group) -> None:
        value = env[a]
        if isinstance(value, Symbolic) and value.fits(bits) and (is_signed or value.low >= 0):
            env[result] = value
        else:
            slow(env, group)

    return step


# shapes and addresses


def _make_range(operation: Operation) -> Step:
    start, end = operation.attributes["start"], operation.attributes["end"]
    (result,) = operation.results
    line = fixed(np.arange(start, end, dtype=np.int64)[None])
    values = Symbolic((line,), start, end - 1)

    def step(env: Environment, group: Group) -> None:
        env[result] = values

    return step


def _program_id(operation: Operation) -> Step:
    axis = AXES[operation.attributes["axis"]]
    (result,) = operation.results

    def step(env: Environment, group: Group) -> None:
        env[result] = group.program_ids(axis)

    return step


def _num_programs(operation: Operation) -> Step:
    axis = AXES[operation.attributes["axis"]]
    (result,) = operation.results

    def step(env: Environment, group: Group) -> None:
        env[result] = np.array([group.launch.grid[axis]], np.int32)

    return step


def _splat(operation: Operation) -> Step:
    (a,), (result,) = operation.operands, operation.results
    kind = operation.types.results[0]
    rank = len(shape_of(kind))
    is_sum = _is_block_integer(kind)

    def step(env: Environment, group: Group) -> None:
        value = arrange.splat(env[a], rank)
        env[result] = Symbolic.of(value) if is_sum and not isinstance(value, Symbolic) else value

    return step


def _unsplat(operation: Operation) -> Step:
    (a,), (result,) = operation.operands, operation.results
    kind = operation.types.operands[0]

    def step(env: Environment, group: Group) -> None:
        value = env[a]
        if isinstance(element_of(kind), Pointer):
            env[result] = arrange.mapped(value, lambda array: array.reshape(-1))
        else:
            env[result] = array_of(value, kind).reshape(-1)

    return step


def _broadcast(operation: Operation) -> Step:
    (a,), (result,) = operation.operands, operation.results

    def step(env: Environment, group: Group) -> None:
        env[result] = env[a]

    return step


def _rearranged(operation: Operation) -> Step:
    """expand_dims, reshape, trans"""
    (a,), (result,) = operation.operands, operation.results
    attributes = operation.attributes
    before = shape_of(operation.types.operands[0])
    after = shape_of(operation.types.results[0])

    def expand(env: Environment, group: Group) -> None:
        env[result] = arrange.expand_dims(env[a], attributes["axis"])

    def transpose(env: Environment, group: Group) -> None:
        env[result] = arrange.transpose(env[a], attributes["order"])

    def reshape(env: Environment, group: Group) -> None:
        env[result] = arrange.reshape(env[a], before, after)

    steps = {"tt.expand_dims": expand, "tt.trans": transpose, "tt.reshape": reshape}
    return steps[operation.name]


def _pointee_bytes(kind: Type) -> int:
    element = element_of(kind)
    assert isinstance(element, Pointer)
    pointee = element_of(element.pointee)
    return pointee.num_bytes if isinstance(pointee, Scalar) else 8


def sum_of(value: Value) -> Symbolic:
    """An integer value as a sum."""
    return value if isinstance(value, Symbolic) else Symbolic.of(value)


def _addptr(operation: Operation) -> Step:
    a, b = operation.operands
    (result,) = operation.results
    size = _pointee_bytes(operation.types.operands[0])

    def step(env: Environment, group: Group) -> None:
        env[result] = env[a].plus(sum_of(env[b]).times(size))

    return step


def _pointer_step(operation: Operation) -> Step:
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


def _poison(operation: Operation) -> Step:
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


def _assume(operation: Operation) -> Step:
    """`tl.assume`: what a card's compiler takes for true must be true, or the kernel means nothing
    there."""
    (condition,) = operation.operands
    line = operation.line

    def step(env: Environment, group: Group) -> None:
        if not np.all(env[condition]):
            raise Unsupported(f"line {line}: tl.assume of something that is false")

    return step


# memory


def _memory_element(kind: Type, operation: Operation) -> Scalar:
    element = element_of(kind)
    if isinstance(element, Pointer) and isinstance(element.pointee, Scalar):
        return element.pointee
    raise Unsupported(f"line {operation.line}: {operation.name} of {kind}")


def _load(operation: Operation) -> Step:
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


def _store(operation: Operation) -> Step:
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


def _make_descriptor(operation: Operation) -> Step:
    base, *rest = operation.operands
    (result,) = operation.results
    rank = len(rest) // 2
    is_nan = "nan" in str(operation.attributes.get("padding", "")).lower()

    def step(env: Environment, group: Group) -> None:
        numbers = [env[value].astype(np.int64) for value in rest]
        env[result] = TensorDescriptor(
            base=env[base],
            shape=tuple(numbers[:rank]),
            strides=tuple(numbers[rank:]),
            padding=float("nan") if is_nan else 0.0,
        )

    return step


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
            integers.compare(index, Symbolic.constant(0, rank), "sge"),
            integers.compare(index, Symbolic.of(limit), "slt"),
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
    found = integers.both(a, b)
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


def _descriptor_load(operation: Operation) -> Step:
    source, *starts = operation.operands
    (result,) = operation.results
    kind = operation.types.results[0]
    block = _block_shape(operation, kind)
    element = _element(kind)

    def step(env: Environment, group: Group) -> None:
        descriptor: TensorDescriptor = env[source]
        addresses, mask = _window(
            descriptor, [env[one] for one in starts], block, element.num_bytes
        )
        other = np.full((1,) * (len(block) + 1), descriptor.padding, dtype_of(element))
        found = load(group, addresses, mask, other, operation, element)
        env[result] = arrange.reshape(found, block, shape_of(kind))

    return step


def _descriptor_store(operation: Operation) -> Step:
    target, *starts, value = operation.operands
    kind = operation.types.operands[-1]
    block = _block_shape(operation, kind)
    element = _element(kind)

    def step(env: Environment, group: Group) -> None:
        addresses, mask = _window(
            env[target], [env[one] for one in starts], block, element.num_bytes
        )
        values = arrange.reshape(array_of(env[value], kind), shape_of(kind), block)
        assert not isinstance(values, Symbolic)
        store(group, addresses, values, mask, operation, element)

    return step


def _descriptor_reduce(operation: Operation) -> Step:
    target, *starts, value = operation.operands
    kind = operation.types.operands[-1]
    block = _block_shape(operation, kind)
    element = _element(kind)
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
    from forge.evalpool.judge.ttir.plan import block_of

    if operation.name in ("tt.descriptor_gather", "tt.descriptor_scatter"):
        return shape_of(kind)
    return block_of(operation.types.operands[0]).shape


OWN: dict[str, Callable[[Operation], Step]] = {
    "tt.make_range": _make_range,
    "tt.get_program_id": _program_id,
    "tt.get_num_programs": _num_programs,
    "tt.splat": _splat,
    "tt.unsplat": _unsplat,
    "tt.broadcast": _broadcast,
    "tt.expand_dims": _rearranged,
    "tt.trans": _rearranged,
    "tt.reshape": _rearranged,
    "tt.addptr": _addptr,
    "tt.load": _load,
    "tt.store": _store,
    "tt.make_tensor_descriptor": _make_descriptor,
    "tt.descriptor_load": _descriptor_load,
    "tt.descriptor_gather": _descriptor_load,
    "tt.descriptor_store": _descriptor_store,
    "tt.descriptor_scatter": _descriptor_store,
    "tt.descriptor_reduce": _descriptor_reduce,
    "ub.poison": _poison,
    "llvm.intr.assume": _assume,
}
