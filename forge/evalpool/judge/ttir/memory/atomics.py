"""Atomic operations: lanes of all instances take their turns in one serial order.

The order is that of the group's instances, which a launch may permute. Lanes at the same address
follow each other; lanes at different addresses do not interfere, so turn k of all addresses is one
operation on arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.memory import conflicts
from forge.evalpool.judge.ttir.memory.access import check_written, mark_written, resolve
from forge.evalpool.judge.ttir.memory.places import Part, Scattered, Windows
from forge.evalpool.judge.ttir.tree import Operation, Scalar, shape_of
from forge.evalpool.judge.ttir.values import Array, decode, encode, memory_dtype

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.symbolic import Symbolic


def _unsigned(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        kind = np.dtype(f"u{a.itemsize}")
        return function(a.view(kind), b.view(kind)).view(a.dtype)

    return apply


UPDATES: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "fadd": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
    "umax": _unsigned(np.maximum),
    "umin": _unsigned(np.minimum),
    "exch": lambda a, b: b,
}
AT = {"add": np.add, "fadd": np.add, "max": np.maximum, "min": np.minimum}
"""Functions whose `at` does all turns at once, where the values between are not asked for."""


def update(
    group: Group,
    addresses: Symbolic,
    values: Array,
    mask: Array | None,
    operation: Operation,
    element: Scalar,
    name: str,
    *,
    is_used: bool,
) -> Array:
    """Updates memory at addresses in turns. Returns the values before, 0 where masked out or
    where nothing uses them."""
    function = UPDATES[name]

    def turn(old: Array, lanes: Any, taken: list[Array]) -> Array:
        return function(old, taken[0][lanes])

    shape = _shape(operation, addresses)
    at = None if is_used or element.name in ("f16", "bf16") else AT.get(name)
    is_blind = name == "exch" and not is_used
    return _turns(
        group, addresses, [values], mask, operation, element, shape, turn, at, is_blind=is_blind
    )


def _shape(operation: Operation, addresses: Symbolic) -> tuple[int, ...]:
    if operation.name == "tt.descriptor_reduce":
        return tuple(np.broadcast_shapes(*(term.shape for term in addresses.terms))[1:])
    return shape_of(operation.types.operands[0])


def swap(
    group: Group,
    addresses: Symbolic,
    expected: Array,
    desired: Array,
    operation: Operation,
    element: Scalar,
) -> Array:
    """Compares memory at addresses in turns, and replaces what is as expected. Returns the values
    before."""

    def turn(old: Array, lanes: Any, taken: list[Array]) -> Array:
        return np.where(old == taken[0][lanes], taken[1][lanes], old)

    shape = shape_of(operation.types.operands[0])
    values = [expected, desired]
    return _turns(group, addresses, values, None, operation, element, shape, turn, None)


def _turns(
    group: Group,
    addresses: Symbolic,
    values: list[Array],
    mask: Array | None,
    operation: Operation,
    element: Scalar,
    shape: tuple[int, ...],
    turn: Callable[[Array, Any, list[Array]], Array],
    at: np.ufunc | None,
    *,
    is_blind: bool = False,
) -> Array:
    """Runs `turn(old, lanes, values) -> new` for all active lanes, one by one at each address.

    `is_blind`: nothing depends on the values before.
    """
    dtype = memory_dtype(element)
    full = (group.size, *shape)
    result = np.zeros(full, decode(np.zeros(1, dtype), element).dtype)
    launch = group.launch
    for part in resolve(group, addresses, mask, operation, dtype.itemsize, is_write=True):
        if launch.is_racing:
            conflicts.note_atomic(group, part, operation, dtype.itemsize)
        if not is_blind:
            check_written(group, part, operation, dtype.itemsize)
        mark_written(part, dtype.itemsize)
        places, lanes = _lanes(part, full, dtype.itemsize)
        taken = [np.broadcast_to(one, full)[lanes] for one in values]
        flat = launch.memory.elements(part.number, dtype)
        launch.num_bytes += 2 * len(places) * dtype.itemsize
        if at is not None:
            at.at(flat, places, encode(taken[0], element))
            continue
        old = np.empty(len(places), result.dtype)
        for chosen in _rounds(places):
            before = decode(flat[places[chosen]], element)
            old[chosen] = before
            after = turn(before, chosen, taken)
            flat[places[chosen]] = encode(_rounded(after, element), element)
        result[lanes] = old
    return result


def _rounded(values: Array, element: Scalar) -> Array:
    if element.name != "bf16":
        return values
    from forge.evalpool.judge.ttir.semantics.formats import round_to

    return round_to(values, "bf16")


def _lanes(part: Part, full: tuple[int, ...], size: int) -> tuple[Array, Any]:
    """Element numbers of the active lanes, and their indices in an array of the whole group."""
    places = part.places.scattered() if isinstance(part.places, Windows) else part.places
    assert isinstance(places, Scattered)
    active = np.zeros(full, np.bool_)
    instances = slice(None) if part.instances is None else part.instances
    active[instances] = True if part.mask is None else part.mask
    offsets = np.zeros(full, np.int64)
    offsets[instances] = places.offsets
    lanes = np.nonzero(active)
    return offsets[lanes] // size, lanes


def _rounds(places: Array) -> list[Array]:
    """Lanes in rounds: each address at most once in a round, and in order of the lanes."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(np.concatenate([starts, [len(ordered)]]))
    if len(counts) == len(ordered):
        return [order]
    ranks = np.arange(len(ordered)) - np.repeat(starts, counts)
    by_rank = np.argsort(ranks, kind="stable")
    sizes = np.bincount(ranks)
    return np.split(order[by_rank], np.cumsum(sizes)[:-1])
