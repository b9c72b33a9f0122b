"""Functions of operations without control flow: numbers, addresses, shapes and memory accesses.

Each is made once for an operation and works on the values of its operands (`Compute`); `plan` makes
a step of it. `evaluate` makes descriptors of arguments of a launch. Addresses are int64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from forge.evalpool.judge.program.dialect import refused_assembly
from forge.evalpool.judge.ttir import tree
from forge.evalpool.judge.ttir.memory.access import UPDATES, load, store, swap, update
from forge.evalpool.judge.ttir.memory.storages import Access, Group
from forge.evalpool.judge.ttir.semantics import OPERATIONS, reshaped
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of, fixed, scalar_of

Compute: TypeAlias = Callable[..., Any]
"""`function(group, *values of the operands)`: the value of the result, or of each of several."""


def compute_of(operation: tree.Operation, used: frozenset[int]) -> Compute:
    """The function of an operation; `used` are the values that something reads. Raises Unsupported
    for an operation that the evaluator lacks."""
    name = operation.name
    if name in FUNCTIONS:
        return FUNCTIONS[name](operation)
    if name.startswith("tt.atomic_"):
        return _atomic(operation, used)
    kinds = operation.types.operands
    if name == "tt.bitcast" and isinstance(tree.element_of(kinds[0]), tree.Pointer):
        return _plain(lambda address: address)
    return _on_arrays(operation)


# --- numbers and addresses


def _on_arrays(operation: tree.Operation) -> Compute:
    function = OPERATIONS.get(operation.name)
    if function is None:
        raise Unsupported(f"line {operation.line}: {operation.name} needs a card")
    kinds, attributes = operation.types, operation.attributes
    if operation.name == "tt.elementwise_inline_asm" and (
        refused := refused_assembly(str(attributes["asm_string"]), str(attributes["constraints"]))
    ):
        raise Unsupported(f"line {operation.line}: {refused}")
    is_single = len(operation.results) == 1

    def compute(_group: Group, *values: Array) -> Any:
        found = function(values, kinds, attributes)
        return found[0] if is_single else found

    return compute


def _added(operation: tree.Operation) -> Compute:
    """`tt.addptr`: an address plus a number of elements."""
    element = tree.element_of(operation.types.operands[0])
    assert isinstance(element, tree.Pointer)
    pointee = tree.element_of(element.pointee)
    size = pointee.num_bytes if isinstance(pointee, tree.Scalar) else 8

    def add(_group: Group, address: Array, count: Array) -> Array:
        return address + np.multiply(count, size, dtype=np.int64)

    return add


def _plain(function: Callable[[Array], Array]) -> Compute:
    def compute(_group: Group, value: Array) -> Array:
        return function(value)

    return compute


def _always(value: Array) -> Compute:
    def compute(_group: Group) -> Array:
        return value

    return compute


def _poison(operation: tree.Operation) -> Compute:
    kind = operation.types.results[0]
    element = tree.element_of(kind)
    dtype = dtype_of(element) if isinstance(element, tree.Scalar) else np.dtype(np.int64)
    return _always(fixed(np.zeros((1,) * (len(tree.shape_of(kind)) + 1), dtype)))


def constant_of(operation: tree.Operation) -> Any:
    kind, value = operation.types.results[0], operation.attributes["value"]
    element, shape = tree.element_of(kind), tree.shape_of(kind)
    if not isinstance(element, tree.Scalar):
        raise Unsupported("arith.constant of pointers")
    dtype = dtype_of(element)
    if isinstance(value, np.ndarray):
        return fixed(value.reshape(1, *shape).astype(dtype))
    with np.errstate(all="ignore"):
        return fixed(np.full((1,) * (len(shape) + 1), value, dtype))


def _claimed(operation: tree.Operation) -> Compute:
    """`tl.assume`, where a card's compiler takes the condition for true, so that the kernel means
    nothing if it is not; and `tl.device_assert`, which is in a text only where a kernel asks for it
    (`debug=True`)."""
    name = "tl.assume" if operation.name == "llvm.intr.assume" else "tl.device_assert"

    def check(_group: Group, condition: Array) -> None:
        if not np.all(condition):
            raise Unsupported(f"line {operation.line}: {name} of something that is false")

    return check


HINTS = ("tt.contiguity", "tt.divisibility", "tt.constancy")


def hinted(operation: tree.Operation, compute: Compute, *, is_loaded: bool) -> Compute:
    """The function of an operation whose result `tl.multiple_of`, `tl.max_contiguous` or
    `tl.max_constancy` describe: a card's compiler takes that for true, as `tl.assume`. Of what is
    not loaded the first element alone is asked: a hint of `rows % M` is false behind M."""
    kind = operation.types.results[0]
    element, shape = tree.element_of(kind), tree.shape_of(kind)
    is_address = isinstance(element, tree.Pointer)
    size = scalar_of(element.pointee).num_bytes if isinstance(element, tree.Pointer) else 1
    numbers = [operation.attributes.get(name, ()) for name in HINTS]
    spread = [[one] * len(shape) if isinstance(one, str) else one for one in numbers]
    contiguity, divisors, constancy = ([int(one) for one in each] for each in spread)
    divisor = 1 if is_address else max([one & -one for one in divisors], default=1)

    def checked(group: Group, *values: Any) -> Any:
        found = compute(group, *values)
        block = np.broadcast_to(found, (len(found), *shape))
        is_first = np.ones(block.shape, bool)
        is_first.reshape(len(block), -1)[:, 1:] = is_loaded
        for axis, length in enumerate(shape if is_loaded else (), 1):
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


HINT_WORDS = "a hint is false: tl.multiple_of, tl.max_contiguous or tl.max_constancy"


# --- shapes


AXES = {"x": 0, "y": 1, "z": 2, 0: 0, 1: 1, 2: 2}


def _range(operation: tree.Operation) -> Compute:
    start, end = operation.attributes["start"], operation.attributes["end"]
    return _always(fixed(np.arange(start, end, dtype=np.int32)[None]))


def _program_id(operation: tree.Operation) -> Compute:
    return partial(Group.program_ids, axis=AXES[operation.attributes["axis"]])


def _num_programs(operation: tree.Operation) -> Compute:
    axis = AXES[operation.attributes["axis"]]

    def num_programs(group: Group) -> Array:
        return np.array([group.launch.grid[axis]], np.int32)

    return num_programs


def _splat(operation: tree.Operation) -> Compute:
    rank = len(tree.shape_of(operation.types.results[0]))
    return _plain(lambda scalar: scalar.reshape(-1, *(1,) * rank))


def _expanded(operation: tree.Operation) -> Compute:
    axis = operation.attributes["axis"] + 1
    return _plain(lambda block: np.expand_dims(block, axis))


def _transposed(operation: tree.Operation) -> Compute:
    axes = (0, *(axis + 1 for axis in operation.attributes["order"]))
    return _plain(lambda block: block.transpose(axes))


def _reshaped(operation: tree.Operation) -> Compute:
    """Elements in the opposite order where the compiler may give them any."""
    before, after = (
        tree.shape_of(one[0]) for one in (operation.types.operands, operation.types.results)
    )
    if "allow_reorder" not in operation.attributes:
        return _plain(lambda block: reshaped(block, before, after))
    size = math.prod(before)
    return _plain(lambda block: reshaped(reshaped(block, before, (size,))[:, ::-1], (size,), after))


# --- memory


def _memory_element(operation: tree.Operation) -> tree.Scalar:
    kind = operation.types.operands[0]
    element = tree.element_of(kind)
    if isinstance(element, tree.Pointer) and isinstance(element.pointee, tree.Scalar):
        return element.pointee
    raise Unsupported(f"line {operation.line}: {operation.name} of {kind}")


def _load(operation: tree.Operation) -> Compute:
    element = _memory_element(operation)

    def compute(
        group: Group, address: Array, mask: Array | None = None, other: Array | None = None
    ) -> Array:
        return load(Access(group, address, mask, operation, element), other)

    return compute


def _store(operation: tree.Operation) -> Compute:
    element = _memory_element(operation)

    def compute(group: Group, address: Array, value: Array, mask: Array | None = None) -> None:
        store(Access(group, address, mask, operation, element), value)

    return compute


def _atomic(operation: tree.Operation, used: frozenset[int]) -> Compute:
    """tt.atomic_rmw or tt.atomic_cas; `used` are the values that something reads."""
    element = _memory_element(operation)
    if operation.name == "tt.atomic_cas":

        def exchange(
            group: Group, address: Array, before: Array, after: Array, mask: Array | None = None
        ) -> Array:
            return swap(Access(group, address, mask, operation, element), before, after)

        return exchange
    if operation.name != "tt.atomic_rmw":
        raise Unsupported(f"line {operation.line}: {operation.name}")
    name, is_used = _update_name(operation, element), not used.isdisjoint(operation.results)

    def compute(group: Group, address: Array, value: Array, mask: Array | None = None) -> Array:
        return update(
            Access(group, address, mask, operation, element), value, name, is_used=is_used
        )

    return compute


def _update_name(operation: tree.Operation, element: tree.Scalar) -> str:
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
    base: Array
    """Address, `[n or 1]`."""
    shape: tuple[Array, ...]
    strides: tuple[Array, ...]
    """In elements, `[n or 1]` each, as the sizes."""
    padding: float = 0.0
    """Value of what lies outside the shape."""


def _described(operation: tree.Operation) -> Compute:
    rank = (len(operation.operands) - 1) // 2
    is_nan = "nan" in str(operation.attributes.get("padding", "")).lower()
    size = scalar_of(operation.types.results[0]).num_bytes

    def describe(_group: Group, base: Array, *given: Array) -> TensorDescriptor:
        numbers = [one.astype(np.int64) for one in given]
        shape, strides = tuple(numbers[:rank]), tuple(numbers[rank:])
        # Bytes from one element to the next along each axis but the last, as far as it has several.
        steps = [
            np.where(length > 1, stride * size, 0)
            for length, stride in zip(shape[:-1], strides[:-1], strict=True)
        ]
        if any(np.any(one % ALIGNMENT) for one in (base, *steps)):
            raise Unsupported(f"line {operation.line}: {UNALIGNED_WORDS}")
        padding = float("nan") if is_nan else 0.0
        return TensorDescriptor(base=base, shape=shape, strides=strides, padding=padding)

    return describe


def _window(operation: tree.Operation, kind: tree.Type) -> Callable[..., Access]:
    """Makes the access to a block through a descriptor at some indices."""
    element, shape = scalar_of(kind), _block_shape(operation, kind)
    rank = len(shape)

    def window(group: Group, descriptor: TensorDescriptor, starts: Sequence[Any]) -> Access:
        ones = (1,) * rank
        addresses, mask = descriptor.base.reshape(-1, *ones), np.ones((1, *ones), np.bool_)
        for axis, start in enumerate(starts):
            index = _along(start, axis, shape)
            mask = mask & (index >= 0) & (index < descriptor.shape[axis].reshape(-1, *ones))
            stride = descriptor.strides[axis].reshape(-1, *ones)
            addresses = addresses + index * (stride * element.num_bytes)
        return Access(group, addresses, mask, operation, element)

    return window


def _along(start: Array, axis: int, shape: tuple[int, ...]) -> Array:
    """Indices of a block along an axis: from a scalar on, or a given row of them."""
    rank = len(shape)
    form = [1] * (rank + 1)
    form[axis + 1] = shape[axis]
    if start.ndim > 1:  # x_offsets of a gather
        rows = start.astype(np.int64)
        return np.broadcast_to(rows, (len(rows), shape[axis])).reshape(-1, *form[1:])
    line = np.arange(shape[axis], dtype=np.int64).reshape(form)
    return start.astype(np.int64).reshape(-1, *(1,) * rank) + line


def _load_described(operation: tree.Operation) -> Compute:
    kind = operation.types.results[0]
    block, dtype = _block_shape(operation, kind), dtype_of(scalar_of(kind))
    window = _window(operation, kind)

    def compute(group: Group, descriptor: TensorDescriptor, *starts: Array) -> Array:
        other = np.full((1,) * (len(block) + 1), descriptor.padding, dtype)
        found = load(window(group, descriptor, starts), other)
        return reshaped(found, block, tree.shape_of(kind))

    return compute


def _store_described(operation: tree.Operation) -> Compute:
    kind = operation.types.operands[-1]
    block, window = _block_shape(operation, kind), _window(operation, kind)
    is_update = operation.name == "tt.descriptor_reduce"
    name = _update_name(operation, scalar_of(kind)) if is_update else ""

    def compute(group: Group, descriptor: TensorDescriptor, *given: Array) -> None:
        *starts, value = given
        values = reshaped(value, tree.shape_of(kind), block)
        if is_update:
            update(window(group, descriptor, starts), values, name, is_used=False)
        else:
            store(window(group, descriptor, starts), values)

    return compute


def _block_shape(operation: tree.Operation, kind: tree.Type) -> tuple[int, ...]:
    """Shape of the window: the descriptor's block, or the rows of a gather or scatter."""
    if operation.name in ("tt.descriptor_gather", "tt.descriptor_scatter"):
        return tree.shape_of(kind)
    (described, *_) = operation.types.operands
    assert isinstance(described, tree.Descriptor)
    return described.block.shape


FUNCTIONS: dict[str, Callable[[tree.Operation], Compute]] = {
    "tt.make_range": _range,
    "tt.get_program_id": _program_id,
    "tt.get_num_programs": _num_programs,
    "tt.splat": _splat,
    "tt.unsplat": lambda _: _plain(np.ravel),
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
