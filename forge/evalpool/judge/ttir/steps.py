"""Functions of operations without control flow: numbers, addresses, shapes and memory accesses.

Each is made once for an operation and works on the values of its operands (`Compute`); `plan` makes
a step of it. `evaluate` makes descriptors of arguments of a launch. Integers of blocks keep a sum
of lines (`Symbolic`) where an operand is one; any other operand goes through `_on_arrays`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from forge.evalpool.judge.program.dialect import refused_assembly
from forge.evalpool.judge.ttir import symbolic
from forge.evalpool.judge.ttir.memory.access import UPDATES, load, store, swap, update
from forge.evalpool.judge.ttir.memory.storages import Access, Group
from forge.evalpool.judge.ttir.semantics import OPERATIONS
from forge.evalpool.judge.ttir.symbolic import Symbolic, Value
from forge.evalpool.judge.ttir.tree import (
    Block,
    Descriptor,
    Operation,
    Pointer,
    Scalar,
    Type,
    element_of,
    shape_of,
)
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of, fixed, scalar_of

Compute: TypeAlias = Callable[..., Any]
"""`function(group, *values of the operands)`: the value of the result, or of each of several."""


def compute_of(operation: Operation, used: frozenset[int]) -> Compute:
    """The function of an operation; `used` are the values that something reads. Raises Unsupported
    for an operation that the evaluator lacks."""
    name = operation.name
    if name in FUNCTIONS:
        return FUNCTIONS[name](operation)
    if name.startswith("tt.atomic_"):
        return _atomic(operation, used)
    quick = _on_sums(operation)
    if quick is None:
        kinds = (*operation.types.operands, *operation.types.results)
        has_pointers = any(isinstance(element_of(kind), Pointer) for kind in kinds)
        return _on_pointers(operation) if has_pointers else _on_arrays(operation)
    slow = _on_arrays(operation)

    def compute(group: Group, *values: Value) -> Any:
        found = quick(*values)
        return slow(group, *values) if found is None else found

    return compute


# --- numbers and addresses


def _is_block_integer(kind: Type) -> bool:
    element = element_of(kind)
    is_integer = isinstance(element, Scalar) and not element.is_float and element.name != "i1"
    return is_integer and bool(shape_of(kind))


def array_of(value: Value, kind: Type) -> Array:
    """A value as an array of its type; addresses as int64."""
    if not isinstance(value, Symbolic):
        return value
    element = element_of(kind)
    return value.array(dtype_of(element) if isinstance(element, Scalar) else symbolic.INT64)


def _on_arrays(operation: Operation) -> Compute:
    function = OPERATIONS.get(operation.name)
    if function is None:
        raise Unsupported(f"line {operation.line}: {operation.name} needs a card")
    kinds, attributes = operation.types, operation.attributes
    if operation.name == "tt.elementwise_inline_asm" and (
        refused := refused_assembly(str(attributes["asm_string"]), str(attributes["constraints"]))
    ):
        raise Unsupported(f"line {operation.line}: {refused}")
    is_single = len(operation.results) == 1

    def compute(_group: Group, *values: Value) -> Any:
        arrays = [array_of(*pair) for pair in zip(values, kinds.operands, strict=True)]
        found = function(arrays, kinds, attributes)
        return found[0] if is_single else found

    return compute


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


JOINS = {"arith.andi": symbolic.both, "arith.ori": symbolic.either}


def _on_sums(operation: Operation) -> Callable[..., Value | None] | None:
    """A function of operands that may be sums, or masks that are the same everywhere, which answers
    None where arrays have to do; None for other operations."""
    name, kinds = operation.name, operation.types.results
    if name == "arith.cmpi":
        predicate = operation.attributes["predicate"]
        return _where_sum(lambda left, right: symbolic.compare(left, right, predicate))
    if name in JOINS and scalar_of(kinds[0]).name == "i1":
        function = JOINS[name]

        def join(left: Array, right: Array) -> Array | None:
            found = function(left, right)
            return found if found is not None and found.ndim == left.ndim else None

        return join
    if not kinds or not _is_block_integer(kinds[0]):
        return None
    bits = scalar_of(kinds[0]).bits
    if name in SUMS:
        return _where_sum(lambda left, right: SUMS[name](left, right, bits))
    if name not in WIDTHS:
        return None

    def resize(value: Value) -> Symbolic | None:
        """A sum as it is, where it fits."""
        if not isinstance(value, Symbolic) or not value.fits(bits):
            return None
        return value if name != "arith.extui" or value.low >= 0 else None

    return resize


def _where_sum(
    function: Callable[[Value, Value], Value | None],
) -> Callable[[Value, Value], Value | None]:
    """The function where one of two operands is a sum."""

    def apply(left: Value, right: Value) -> Value | None:
        is_sum = isinstance(left, Symbolic) or isinstance(right, Symbolic)
        return function(left, right) if is_sum else None

    return apply


def _added(operation: Operation) -> Compute:
    """`tt.addptr`: an address plus a number of elements."""
    element = element_of(operation.types.operands[0])
    assert isinstance(element, Pointer)
    pointee = element_of(element.pointee)
    size = pointee.num_bytes if isinstance(pointee, Scalar) else 8

    def add(_group: Group, address: Symbolic, count: Value) -> Symbolic:
        return address.plus(symbolic.sum_of(count).times(size))

    return add


def _on_pointers(operation: Operation) -> Compute:
    """Operations on addresses that do not depend on the type of the target."""
    if operation.name == "tt.bitcast":
        return _plain(lambda address: address)
    if operation.name == "arith.select":
        return _selected
    raise Unsupported(f"line {operation.line}: {operation.name} of pointers")


def _plain(function: Callable[[Value], Value]) -> Compute:
    def compute(_group: Group, value: Value) -> Value:
        return function(value)

    return compute


def _always(value: Value) -> Compute:
    def compute(_group: Group) -> Value:
        return value

    return compute


def _selected(_group: Group, mask: Array, a: Symbolic, b: Symbolic) -> Symbolic:
    if mask.size == 1:
        return a if mask.flat[0] else b
    left, right = a.array(symbolic.INT64), b.array(symbolic.INT64)
    mask = mask.reshape(mask.shape + (1,) * (left.ndim - mask.ndim))
    return Symbolic.of(np.where(mask, left, right))


def _poison(operation: Operation) -> Compute:
    kind = operation.types.results[0]
    element, rank = element_of(kind), len(shape_of(kind))
    if isinstance(element, Scalar):
        return _always(fixed(np.zeros((1,) * (rank + 1), dtype_of(element))))
    return _always(Symbolic.constant(0, rank))


def constant_of(operation: Operation) -> Any:
    """`arith.constant`: integers of blocks as sums, the rest as compact arrays."""
    kind, value = operation.types.results[0], operation.attributes["value"]
    element, shape = element_of(kind), shape_of(kind)
    if not isinstance(element, Scalar):
        raise Unsupported("arith.constant of pointers")
    dtype = dtype_of(element)
    if isinstance(value, np.ndarray):
        return fixed(value.reshape(1, *shape).astype(dtype))
    if _is_block_integer(kind):
        return Symbolic.constant(int(value), len(shape))
    with np.errstate(all="ignore"):
        return fixed(np.full((1,) * (len(shape) + 1), value, dtype))


def _claimed(operation: Operation) -> Compute:
    """`tl.assume`, where a card's compiler takes the condition for true, so that the kernel means
    nothing if it is not; and `tl.device_assert`, which is in a text only where a kernel asks for it
    (`debug=True`)."""
    name = "tl.assume" if operation.name == "llvm.intr.assume" else "tl.device_assert"

    def check(_group: Group, condition: Array) -> None:
        if not np.all(condition):
            raise Unsupported(f"line {operation.line}: {name} of something that is false")

    return check


HINTS = ("tt.contiguity", "tt.divisibility", "tt.constancy")


def hinted(operation: Operation, compute: Compute) -> Compute:
    """The function of an operation on what a kernel has loaded, whose result `tl.multiple_of`,
    `tl.max_contiguous` or `tl.max_constancy` may describe: a card's compiler takes that for true,
    as `tl.assume`. (Of `rows % M` a hint is false in the last program, where it does no harm.)"""
    kind = operation.types.results[0]
    element, shape = element_of(kind), shape_of(kind)
    is_address = isinstance(element, Pointer)
    size = scalar_of(element.pointee).num_bytes if isinstance(element, Pointer) else 1
    numbers = [operation.attributes.get(name, ()) for name in HINTS]
    spread = [[one] * len(shape) if isinstance(one, str) else one for one in numbers]
    contiguity, divisors, constancy = ([int(one) for one in each] for each in spread)
    divisor = 1 if is_address else max([one & -one for one in divisors], default=1)

    def checked(group: Group, *values: Any) -> Any:
        found = compute(group, *values)
        block = found.array(symbolic.INT64) if isinstance(found, Symbolic) else found
        block = np.broadcast_to(block, (len(block), *shape))
        is_first = np.ones(block.shape, bool)
        for axis, length in enumerate(shape, 1):
            steps = np.diff(block, axis=axis)
            inner = np.arange(1, length)
            for given, step in ((contiguity, size), (constancy, 0)):
                among = given and inner[inner % math.gcd(given[axis - 1], length) > 0] - 1
                if given and np.any(steps.take(among, axis) != step):
                    raise Unsupported(f"line {operation.line}: {HINT_WORDS}")
            np.moveaxis(is_first, axis, 0)[1:] &= np.moveaxis(steps, axis, 0) != size
        if np.any(block[is_first] % divisor):
            raise Unsupported(f"line {operation.line}: {HINT_WORDS}")
        return found

    return checked


HINT_WORDS = (
    "a hint of what was loaded is false: tl.multiple_of, tl.max_contiguous or tl.max_constancy"
)


# --- shapes


AXES = {"x": 0, "y": 1, "z": 2, 0: 0, 1: 1, 2: 2}


def _range(operation: Operation) -> Compute:
    start, end = operation.attributes["start"], operation.attributes["end"]
    line = fixed(np.arange(start, end, dtype=np.int64)[None])
    return _always(Symbolic((line,), start, end - 1))


def _program_id(operation: Operation) -> Compute:
    return partial(Group.program_ids, axis=AXES[operation.attributes["axis"]])


def _num_programs(operation: Operation) -> Compute:
    axis = AXES[operation.attributes["axis"]]

    def num_programs(group: Group) -> Array:
        return np.array([group.launch.grid[axis]], np.int32)

    return num_programs


def _splat(operation: Operation) -> Compute:
    kind = operation.types.results[0]
    rank, is_sum = len(shape_of(kind)), _is_block_integer(kind)

    def splat(scalar: Value) -> Value:
        value = symbolic.mapped(scalar, lambda array: array.reshape(-1, *(1,) * rank))
        return Symbolic.of(value) if is_sum and not isinstance(value, Symbolic) else value

    return _plain(splat)


def _unsplat(operation: Operation) -> Compute:
    kind = operation.types.operands[0]
    if isinstance(element_of(kind), Pointer):
        return _plain(lambda value: symbolic.mapped(value, np.ravel))
    return _plain(lambda value: np.ravel(array_of(value, kind)))


def _expanded(operation: Operation) -> Compute:
    axis = operation.attributes["axis"] + 1
    return _plain(lambda value: symbolic.mapped(value, lambda one: np.expand_dims(one, axis)))


def _transposed(operation: Operation) -> Compute:
    axes = (0, *(axis + 1 for axis in operation.attributes["order"]))
    return _plain(lambda value: symbolic.mapped(value, lambda one: one.transpose(axes)))


def _reshaped(operation: Operation) -> Compute:
    before, after = (
        shape_of(one[0]) for one in (operation.types.operands, operation.types.results)
    )
    return _plain(lambda value: symbolic.reshape(value, before, after))


# --- memory


def _memory_element(operation: Operation) -> Scalar:
    kind = operation.types.operands[0]
    element = element_of(kind)
    if isinstance(element, Pointer) and isinstance(element.pointee, Scalar):
        return element.pointee
    raise Unsupported(f"line {operation.line}: {operation.name} of {kind}")


def _load(operation: Operation) -> Compute:
    element, kind = _memory_element(operation), operation.types.results[0]

    def compute(
        group: Group, address: Symbolic, mask: Array | None = None, other: Value | None = None
    ) -> Array:
        rest = None if other is None else array_of(other, kind)
        return load(Access(group, address, mask, operation, element), rest)

    return compute


def _store(operation: Operation) -> Compute:
    element, kind = _memory_element(operation), operation.types.operands[1]

    def compute(group: Group, address: Symbolic, value: Value, mask: Array | None = None) -> None:
        store(Access(group, address, mask, operation, element), array_of(value, kind))

    return compute


def _atomic(operation: Operation, used: frozenset[int]) -> Compute:
    """tt.atomic_rmw or tt.atomic_cas; `used` are the values that something reads."""
    element, kind = _memory_element(operation), operation.types.operands[1]
    if operation.name == "tt.atomic_cas":

        def exchange(
            group: Group, address: Symbolic, before: Value, after: Value, mask: Array | None = None
        ) -> Array:
            access = Access(group, address, mask, operation, element)
            return swap(access, array_of(before, kind), array_of(after, kind))

        return exchange
    if operation.name != "tt.atomic_rmw":
        raise Unsupported(f"line {operation.line}: {operation.name}")
    name, is_used = _update_name(operation, element), not used.isdisjoint(operation.results)

    def compute(group: Group, address: Symbolic, value: Value, mask: Array | None = None) -> Array:
        access = Access(group, address, mask, operation, element)
        return update(access, array_of(value, element), name, is_used=is_used)

    return compute


def _update_name(operation: Operation, element: Scalar) -> str:
    name = operation.attributes["operation"]
    name = "fadd" if name == "add" and element.is_float else name
    if name not in UPDATES:
        raise Unsupported(f"line {operation.line}: atomic {name}")
    return name


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


def _described(operation: Operation) -> Compute:
    rank = (len(operation.operands) - 1) // 2
    is_nan = "nan" in str(operation.attributes.get("padding", "")).lower()
    size = scalar_of(_block_of(operation.types.results[0])).num_bytes

    def describe(_group: Group, base: Symbolic, *given: Array) -> TensorDescriptor:
        numbers = [one.astype(np.int64) for one in given]
        shape, strides = tuple(numbers[:rank]), tuple(numbers[rank:])
        # Bytes from one element to the next along each axis but the last, as far as it has several.
        steps = [
            np.where(length > 1, stride * size, 0)
            for length, stride in zip(shape[:-1], strides[:-1], strict=True)
        ]
        if any(np.any(one % ALIGNMENT) for one in (base.array(symbolic.INT64), *steps)):
            raise Unsupported(f"line {operation.line}: {UNALIGNED_WORDS}")
        padding = float("nan") if is_nan else 0.0
        return TensorDescriptor(base=base, shape=shape, strides=strides, padding=padding)

    return describe


def _window(operation: Operation, kind: Type) -> Callable[..., Access]:
    """Makes the access to a block through a descriptor at some indices."""
    element, shape = scalar_of(kind), _block_shape(operation, kind)
    rank = len(shape)

    def window(group: Group, descriptor: TensorDescriptor, starts: Sequence[Any]) -> Access:
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
                joined = found if mask is None else symbolic.both(mask, found)
                mask = mask & found if joined is None and mask is not None else joined
            stride = descriptor.strides[axis]
            if int(stride.min()) == int(stride.max()):
                offset = index.times(int(stride[0]) * element.num_bytes)
            else:
                wide = stride.reshape(-1, *(1,) * rank) * element.num_bytes
                offset = Symbolic.of(index.array(symbolic.INT64) * wide)
            addresses = addresses.plus(offset)
        return Access(group, addresses, mask, operation, element)

    return window


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


def _load_described(operation: Operation) -> Compute:
    kind = operation.types.results[0]
    block, dtype = _block_shape(operation, kind), dtype_of(scalar_of(kind))
    window = _window(operation, kind)

    def compute(group: Group, descriptor: TensorDescriptor, *starts: Value) -> Value:
        other = np.full((1,) * (len(block) + 1), descriptor.padding, dtype)
        found = load(window(group, descriptor, starts), other)
        return symbolic.reshape(found, block, shape_of(kind))

    return compute


def _store_described(operation: Operation) -> Compute:
    kind = operation.types.operands[-1]
    block, window = _block_shape(operation, kind), _window(operation, kind)
    is_update = operation.name == "tt.descriptor_reduce"
    name = _update_name(operation, scalar_of(kind)) if is_update else ""

    def compute(group: Group, descriptor: TensorDescriptor, *given: Value) -> None:
        *starts, value = given
        values = symbolic.reshape(array_of(value, kind), shape_of(kind), block)
        assert not isinstance(values, Symbolic)
        if is_update:
            update(window(group, descriptor, starts), values, name, is_used=False)
        else:
            store(window(group, descriptor, starts), values)

    return compute


def _block_shape(operation: Operation, kind: Type) -> tuple[int, ...]:
    """Shape of the window: the descriptor's block, or the rows of a gather or scatter."""
    if operation.name in ("tt.descriptor_gather", "tt.descriptor_scatter"):
        return shape_of(kind)
    return _block_of(operation.types.operands[0]).shape


def _block_of(kind: Type) -> Block:
    if not isinstance(kind, Descriptor):
        raise Unsupported(f"{kind} is no descriptor")
    return kind.block


FUNCTIONS: dict[str, Callable[[Operation], Compute]] = {
    "tt.make_range": _range,
    "tt.get_program_id": _program_id,
    "tt.get_num_programs": _num_programs,
    "tt.splat": _splat,
    "tt.unsplat": _unsplat,
    "tt.broadcast": lambda _: _plain(lambda block: block),  # 1 stands for any size
    "tt.expand_dims": _expanded,
    "tt.trans": _transposed,
    "tt.reshape": _reshaped,
    "tt.addptr": _added,
    "tt.load": _load,
    "tt.store": _store,
    "tt.make_tensor_descriptor": _described,
    "tt.descriptor_load": _load_described,
    "tt.descriptor_gather": _load_described,
    "tt.descriptor_store": _store_described,
    "tt.descriptor_scatter": _store_described,
    "tt.descriptor_reduce": _store_described,
    "ub.poison": _poison,
    "llvm.intr.assume": _claimed,
    "tt.assert": _claimed,
    "cf.assert": _claimed,
}
"""Operations that have a function of their own, whatever their types."""
