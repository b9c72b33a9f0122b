"""Loads, stores and atomic updates of many instances at once, checked exactly.

An access is resolved into parts: instances whose windows lie inside one storage, which are views,
and the rest lane by lane. Every lane that the mask lets through must lie inside its storage.

Atomics take their turns in one serial order: that of the group's instances, which a launch may
permute. Lanes at the same address follow each other; lanes at different addresses do not interfere,
so turn k of all addresses is one operation on arrays.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.memory import conflicts
from forge.evalpool.judge.ttir.memory.storages import (
    Faulted,
    FaultKind,
    Part,
    Places,
    Scattered,
    Windows,
    windows_of,
)
from forge.evalpool.judge.ttir.tree import Operation, Scalar, shape_of
from forge.evalpool.judge.ttir.values import Array, decode, encode, memory_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from forge.evalpool.judge.ttir.memory.storages import Group
    from forge.evalpool.judge.ttir.symbolic import Symbolic


# --- access


def load(
    group: Group,
    addresses: Symbolic,
    mask: Array | None,
    other: Array | None,
    operation: Operation,
    element: Scalar,
) -> Array:
    """Values at addresses; `other`, else 0, where the mask is False."""
    dtype = memory_dtype(element)
    parts = list(resolve(group, addresses, mask, operation, dtype.itemsize, is_write=False))
    launch = group.launch
    results: list[tuple[Any, Array]] = []
    for part in parts:
        flat = launch.memory.elements(part.number, dtype)
        raw = part.places.read(flat, dtype.itemsize)
        check_written(group, part, operation, dtype.itemsize)
        if part.number in launch.watched:
            if launch.is_racing:
                conflicts.note_read(group, part, operation, dtype.itemsize)
            if part.number in launch.relayed and operation.name == "tt.load":
                kind = operation.types.results[0]
                conflicts.check_load(group, part, operation, shape_of(kind), dtype.itemsize)
            if isinstance(part.places, Windows):
                raw = raw.copy()
        launch.num_bytes += dtype.itemsize * _count(raw, part.mask, group, part)
        results.append((part, decode(raw, element)))
    if len(results) == 1 and results[0][0].instances is None:
        part, values = results[0]
        return _blended(values, part.mask, other)
    return _assembled(group, addresses, mask, other, results, element)


def _blended(values: Array, mask: Array | None, other: Array | None) -> Array:
    if mask is None or (mask.size == 1 and mask.flat[0]):
        return values
    rest = values.dtype.type(0) if other is None else other
    return np.where(mask, values, rest)


def _assembled(
    group: Group,
    addresses: Symbolic,
    mask: Array | None,
    other: Array | None,
    results: list[tuple[Part, Array]],
    element: Scalar,
) -> Array:
    """The values of several parts as one array."""
    rank = addresses.terms[0].ndim
    shapes = [term.shape for term in addresses.terms]
    shapes += [one.shape for one in (mask, other) if one is not None]
    shape = (group.size, *np.broadcast_shapes(*shapes)[1:])
    wanted = decode(np.empty(1, memory_dtype(element)), element).dtype
    total = np.zeros(shape, wanted)
    if other is not None:
        total[...] = other
    for part, values in results:
        lanes = slice(None) if part.instances is None else part.instances
        if part.mask is None:
            total[lanes] = values
        else:
            total[lanes] = np.where(part.mask, values, total[lanes])
    assert total.ndim == rank
    return total


def store(
    group: Group,
    addresses: Symbolic,
    values: Array,
    mask: Array | None,
    operation: Operation,
    element: Scalar,
) -> None:
    """Writes values to addresses where the mask is True."""
    dtype = memory_dtype(element)
    size = dtype.itemsize
    launch = group.launch
    raw = encode(values, element)
    for part in resolve(group, addresses, mask, operation, size, is_write=True):
        chosen = raw
        if part.instances is not None and raw.shape[0] > 1:
            chosen = raw[part.instances]
        flat = launch.memory.elements(part.number, dtype)
        check = None
        if launch.is_racing:
            check = conflicts.note_write(group, part, operation, flat, chosen)
        if part.number in launch.relayed and operation.name == "tt.store":
            kind = operation.types.operands[1]
            conflicts.note_store(group, part, shape_of(kind), flat, chosen)
        if part.places.is_disjoint(size):
            part.places.write(flat, size, chosen, part.mask)
        else:
            _write_any(group, part, operation, flat, chosen)
        if check is not None:
            check()
        mark_written(part, size)
        launch.num_bytes += size * _count(chosen, part.mask, group, part)


def _write_any(group: Group, part: Part, operation: Operation, flat: Array, raw: Array) -> None:
    """Writes to places of which two lanes may have one: on a card any of them wins."""
    places, size = part.places, flat.itemsize
    if group.launch.reverses_lanes:
        places = places.scattered() if isinstance(places, Windows) else places
        places.write_reversed(flat, size, raw, part.mask)
        return
    places.write(flat, size, raw, part.mask)
    if group.launch.compares_lanes:
        conflicts.note_lanes(group, part, operation, flat, raw)


def mark_written(part: Part, size: int) -> None:
    """Notes that the bytes of a part are initialised."""
    written, granule = part.storage.written, part.storage.granule
    if written is None:
        return
    for place in granules(part.places, size, granule):
        place.write(written, granule, np.ones((1,) * (_rank(place) + 1), np.bool_), part.mask)


def granules(places: Places, size: int, granule: int) -> Iterator[Places]:
    """The places of each granule of elements of `size` bytes."""
    if isinstance(places, Windows) and size < granule:
        places = places.scattered()  # windows of smaller elements may begin inside a granule
    yield places
    for offset in range(granule, size, granule):
        if isinstance(places, Windows):
            yield Windows(places.bases + offset, places.strides, places.shape)
        else:
            yield Scattered(places.offsets + offset)


def _rank(places: Places) -> int:
    return len(places.shape) if isinstance(places, Windows) else places.offsets.ndim - 1


def check_written(group: Group, part: Part, operation: Operation, size: int) -> None:
    """Suspects a read of a part that nothing has written."""
    written, granule = part.storage.written, part.storage.granule
    if written is None:
        return
    for place in granules(part.places, size, granule):
        missing = ~place.read(written, granule)
        if part.mask is not None:
            missing = missing & part.mask
        if missing.any():
            lane = np.unravel_index(int(np.argmax(missing)), missing.shape)
            address = _address(group, part, missing.shape, lane)
            instance = int(lane[0] if part.instances is None else part.instances[lane[0]])
            kind = FaultKind.UNINITIALISED
            group.launch.suspect(group.fault(kind, operation, address, size, instance))
            return


def _address(group: Group, part: Part, shape: tuple[int, ...], lane: tuple[Any, ...]) -> int:
    places = part.places.scattered() if isinstance(part.places, Windows) else part.places
    offset = int(np.broadcast_to(places.offsets, shape)[lane])
    return group.launch.memory.address(part.number, offset)


def resolve(
    group: Group,
    addresses: Symbolic,
    mask: Array | None,
    operation: Operation,
    size: int,
    *,
    is_write: bool,
) -> Iterator[Part]:
    """Parts of an access of elements of `size` bytes.

    Raises:
        Faulted: an active lane is outside every storage of the launch, or not aligned.
    """
    allowed = group.launch.watched if is_write else group.launch.reachable
    if mask is not None and mask.size == 1:
        if not mask.flat[0]:
            return
        mask = None
    memory = group.launch.memory
    number, low = memory.find(addresses.low)
    other, high = memory.find(addresses.high)
    if number is None or number != other or number not in allowed:
        yield from _lanes(group, addresses, mask, operation, size, allowed, None)
        return
    origin = memory.address(number)
    found = windows_of(addresses, origin)
    if found is None or not found.is_aligned(size):
        yield from _lanes(group, addresses, mask, operation, size, allowed, None)
        return
    storage = memory.storages[number]
    end = len(storage.data) - size
    if low >= 0 and high <= end:
        yield Part(None, number, storage, found, mask)
        return
    inside = (found.bases + found.lowest >= 0) & (found.bases + found.highest <= end)
    if inside.all():
        yield Part(None, number, storage, found, mask)
        return
    if not inside.any():
        yield from _lanes(group, addresses, mask, operation, size, allowed, None)
        return
    good, bad = np.flatnonzero(inside), np.flatnonzero(~inside)
    windows = Windows(found.bases[good], found.strides, found.shape)
    yield Part(good, number, storage, windows, _taken(mask, good))
    chosen = addresses.mapped(lambda term: term[bad] if term.shape[0] > 1 else term)
    yield from _lanes(group, chosen, _taken(mask, bad), operation, size, allowed, bad)


def _taken(mask: Array | None, instances: NDArray[np.intp]) -> Array | None:
    return mask if mask is None or mask.shape[0] == 1 else mask[instances]


def _lanes(
    group: Group,
    addresses: Symbolic,
    mask: Array | None,
    operation: Operation,
    size: int,
    allowed: frozenset[int],
    instances: NDArray[np.intp] | None,
) -> Iterator[Part]:
    """Parts lane by lane."""
    array = addresses.array(np.dtype(np.int64))
    lanes: Array | None = None
    if mask is not None:
        array, lanes = np.broadcast_arrays(array, mask)
        if not lanes.any():
            return
        low, high = int(array[lanes].min()), int(array[lanes].max())
    else:
        low, high = int(array.min()), int(array.max())
    memory = group.launch.memory
    first, last = memory.find(low)[0], memory.find(high)[0]
    if first is not None and first == last and first in allowed:
        yield _lanes_of(group, first, array, lanes, operation, size, instances)
        return
    numbers = memory.find_all(array)
    active = numbers if lanes is None else numbers[lanes]
    for number in np.unique(active):
        here = numbers == number
        here = here if lanes is None else here & lanes
        if number not in allowed:
            _raise_outside(group, here, array, operation, size, instances)
        yield _lanes_of(group, int(number), array, here, operation, size, instances)


def _lanes_of(
    group: Group,
    number: int,
    array: NDArray[np.int64],
    lanes: Array | None,
    operation: Operation,
    size: int,
    instances: NDArray[np.intp] | None,
) -> Part:
    memory = group.launch.memory
    storage = memory.storages[number]
    offsets = array - memory.address(number)
    bad = (offsets < 0) | (offsets > len(storage.data) - size)
    if lanes is not None:
        bad &= lanes
    if bad.any():
        _raise_outside(group, bad, array, operation, size, instances)
    if lanes is not None:
        offsets = np.where(lanes, offsets, 0)
    crooked = offsets % size != 0
    if crooked.any():
        kind = FaultKind.MISALIGNED
        _raise_outside(group, crooked, array, operation, size, instances, kind=kind)
    return Part(instances, number, storage, Scattered(offsets), lanes)


def _raise_outside(
    group: Group,
    bad: Array,
    array: NDArray[np.int64],
    operation: Operation,
    size: int,
    instances: NDArray[np.intp] | None,
    *,
    kind: FaultKind = FaultKind.OUT_OF_BOUNDS,
) -> None:
    lane = np.unravel_index(int(np.argmax(bad)), bad.shape)
    instance = int(lane[0] if instances is None else instances[lane[0]])
    raise Faulted(group.fault(kind, operation, int(array[lane]), size, instance))


def _count(raw: Array, mask: Array | None, group: Group, part: Part) -> int:
    """Number of active lanes of a part, counting each instance's own."""
    num = group.size if part.instances is None else len(part.instances)
    if mask is None:
        return raw.size // raw.shape[0] * num
    lanes = int(np.count_nonzero(mask))
    shape = raw.shape if raw.shape == mask.shape else np.broadcast_shapes(raw.shape, mask.shape)
    total = math.prod(shape[1:]) * num
    return lanes * total // mask.size


# --- atomics


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
        places, lanes = _active_lanes(part, full, dtype.itemsize)
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
    from forge.evalpool.judge.ttir.values import round_to

    return round_to(values, "bf16")


def _active_lanes(part: Part, full: tuple[int, ...], size: int) -> tuple[Array, Any]:
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
