"""Loads, stores and atomic updates of many instances at once, checked exactly.

An access is resolved into parts: instances whose windows lie inside one storage, which are views,
and the rest lane by lane. Every lane that the mask lets through must lie inside its storage.

Atomics take their turns in one serial order: that of the group's instances, which a launch may
permute. Lanes at the same address follow each other; lanes at different addresses do not interfere,
so turn k of all addresses is one operation on arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.ttir.memory import conflicts
from forge.evalpool.judge.ttir.memory import storages as mem
from forge.evalpool.judge.ttir.tree import shape_of
from forge.evalpool.judge.ttir.values import Array, decode, encode, memory_dtype, round_to, take

# --- loads and stores


def load(access: mem.Access, other: Array | None) -> Array:
    """Values at addresses; `other`, else 0, where the mask is False."""
    launch, dtype = access.launch, memory_dtype(access.element)
    results: list[tuple[mem.Part, Array]] = []
    for part in list(resolve(access, is_write=False)):
        raw = part.places.read(launch.memory.elements(part.number, dtype), access.size)
        check_written(access, part)
        if part.number in launch.watched:
            if launch.is_racing:
                conflicts.note_read(access, part)
            if part.number in launch.relayed and access.operation.name == "tt.load":
                conflicts.check_load(access, part)
            if isinstance(part.places, mem.Windows):
                raw = raw.copy()
        launch.num_bytes += access.size * _count(access, part, raw)
        results.append((part, decode(raw, access.element)))
    if len(results) == 1 and results[0][0].instances is None:
        part, values = results[0]
        return _blended(values, part.mask, other)
    return _assembled(access, other, results)


def _blended(values: Array, mask: Array | None, other: Array | None) -> Array:
    if mask is None or (mask.size == 1 and mask.flat[0]):
        return values
    rest = values.dtype.type(0) if other is None else other
    return np.where(mask, values, rest)


def _assembled(
    access: mem.Access, other: Array | None, results: list[tuple[mem.Part, Array]]
) -> Array:
    arrays = (access.addresses, access.mask, other)
    shapes = [one.shape for one in arrays if one is not None]
    shape = (access.group.size, *np.broadcast_shapes(*shapes)[1:])
    total = np.zeros(shape, decode(np.empty(1, memory_dtype(access.element)), access.element).dtype)
    if other is not None:
        total[...] = other
    for part, values in results:
        lanes = slice(None) if part.instances is None else part.instances
        total[lanes] = _blended(values, part.mask, total[lanes])
    return total


def store(access: mem.Access, values: Array) -> None:
    """Writes values to addresses where the mask is True."""
    launch, dtype = access.launch, memory_dtype(access.element)
    raw = encode(values, access.element)
    for part in resolve(access, is_write=True):
        chosen = raw if part.instances is None else take(raw, part.instances)
        flat = launch.memory.elements(part.number, dtype)
        check = conflicts.note_write(access, part, flat, chosen) if launch.is_racing else None
        if part.number in launch.relayed and access.operation.name == "tt.store":
            conflicts.note_store(access, part, flat, chosen)
        is_disjoint = part.places.is_disjoint(access.size)
        if launch.reverses_lanes and not is_disjoint:
            part.places.scattered().write_reversed(flat, access.size, chosen, part.mask)
        else:
            part.places.write(flat, access.size, chosen, part.mask)
            if launch.compares_lanes and not is_disjoint:  # on a card any of the lanes wins
                conflicts.note_lanes(access, part, flat, chosen)
        if check is not None:
            check()
        mark_written(part, access.size)
        launch.num_bytes += access.size * _count(access, part, chosen)


def mark_written(part: mem.Part, size: int) -> None:
    """Notes that the bytes of a part are initialised."""
    written, granule = part.storage.written, part.storage.granule
    if written is None:
        return
    for place in granules(part.places, size, granule):
        place.write(written, granule, np.ones((1,) * (place.rank + 1), np.bool_), part.mask)


def granules(places: mem.Places, size: int, granule: int) -> Iterator[mem.Places]:
    """The places of each granule of elements of `size` bytes."""
    if isinstance(places, mem.Windows) and size < granule:
        places = places.scattered()  # windows of smaller elements may begin inside a granule
    yield places
    for offset in range(granule, size, granule):
        if isinstance(places, mem.Windows):
            yield mem.Windows(places.bases + offset, places.strides, places.shape)
        else:
            yield mem.Scattered(places.offsets + offset)


def check_written(access: mem.Access, part: mem.Part) -> None:
    """Suspects a read of a part that nothing has written."""
    written, granule = part.storage.written, part.storage.granule
    if written is None:
        return
    for place in granules(part.places, access.size, granule):
        missing = ~place.read(written, granule)
        if part.mask is not None:
            missing = missing & part.mask
        if missing.any():
            access.launch.suspect(access.fault_in(mem.FaultKind.UNINITIALISED, part, missing))
            return


def resolve(access: mem.Access, *, is_write: bool) -> Iterator[mem.Part]:
    """Parts of an access. Raises Faulted for an active lane that is outside every storage of the
    launch, or not aligned."""
    addresses, mask, launch = access.addresses, access.mask, access.launch
    allowed = launch.watched if is_write else launch.reachable
    if mask is not None and not mask.any():
        return
    mask = None if mask is not None and mask.all() else mask
    number = launch.memory.find(int(addresses.flat[0]))[0]
    found = None
    if number is not None and number in allowed:
        found = mem.windows_of(addresses, launch.memory.address(number))
    if number is None or found is None or not found.is_aligned(access.size):
        yield from _lanes(access, addresses, mask, allowed, None)
        return
    storage = launch.memory.storages[number]
    end = len(storage.data) - access.size
    # Neither end is added to a base: their sum may wrap, or be no number of 64 bits.
    inside = (found.bases >= -found.lowest) & (found.bases <= end - found.highest)
    if inside.all():
        yield mem.Part(None, number, storage, found, mask)
        return
    if not inside.any():
        yield from _lanes(access, addresses, mask, allowed, None)
        return
    good, bad = np.flatnonzero(inside), np.flatnonzero(~inside)
    windows = mem.Windows(found.bases[good], found.strides, found.shape)
    masks = [None if mask is None else take(mask, one) for one in (good, bad)]
    yield mem.Part(good, number, storage, windows, masks[0])
    yield from _lanes(access, take(addresses, bad), masks[1], allowed, bad)


def _lanes(
    access: mem.Access,
    array: NDArray[np.int64],
    mask: Array | None,
    allowed: frozenset[int],
    instances: NDArray[np.intp] | None,
) -> Iterator[mem.Part]:
    lanes: Array | None = None
    if mask is not None:
        array, lanes = np.broadcast_arrays(array, mask)
        if not lanes.any():
            return
    active = array if lanes is None else array[lanes]
    memory = access.launch.memory
    first, last = memory.find(int(active.min()))[0], memory.find(int(active.max()))[0]
    if first is not None and first == last and first in allowed:
        yield _lanes_of(access, first, array, lanes, instances)
        return
    numbers = memory.find_all(array)
    for number in np.unique(numbers if lanes is None else numbers[lanes]):
        here = numbers == number
        here = here if lanes is None else here & lanes
        if number not in allowed:
            _raise(access, mem.FaultKind.OUT_OF_BOUNDS, here, array, instances)
        yield _lanes_of(access, int(number), array, here, instances)


def _lanes_of(
    access: mem.Access,
    number: int,
    array: NDArray[np.int64],
    lanes: Array | None,
    instances: NDArray[np.intp] | None,
) -> mem.Part:
    memory = access.launch.memory
    storage = memory.storages[number]
    offsets = array - memory.address(number)
    bad = (offsets < 0) | (offsets > len(storage.data) - access.size)
    if lanes is not None:
        bad &= lanes
    if bad.any():
        _raise(access, mem.FaultKind.OUT_OF_BOUNDS, bad, array, instances)
    if lanes is not None:
        offsets = np.where(lanes, offsets, 0)
    crooked = offsets & (access.size - 1) != 0  # a power of two; `%` takes five times as long
    if crooked.any():
        _raise(access, mem.FaultKind.MISALIGNED, crooked, array, instances)
    return mem.Part(instances, number, storage, mem.Scattered(offsets), lanes)


def _raise(
    access: mem.Access,
    kind: mem.FaultKind,
    bad: Array,
    array: NDArray[np.int64],
    instances: NDArray[np.intp] | None,
) -> None:
    lane = mem.first_lane(bad)
    raise mem.Faulted(access.fault_at(kind, int(array[lane]), instances, lane))


def _count(access: mem.Access, part: mem.Part, raw: Array) -> int:
    """Number of active lanes of a part, counting each instance's own."""
    num = access.group.size if part.instances is None else len(part.instances)
    if part.mask is None:
        return raw.size // raw.shape[0] * num
    lanes, mask = int(np.count_nonzero(part.mask)), part.mask
    shape = raw.shape if raw.shape == mask.shape else np.broadcast_shapes(raw.shape, mask.shape)
    return lanes * (math.prod(shape[1:]) * num) // mask.size


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


def update(access: mem.Access, values: Array, name: str, *, is_used: bool) -> Array:
    """Updates memory at addresses in turns. Returns the values before, 0 where masked out or
    where nothing uses them."""
    at = None if is_used or access.element.name in ("f16", "bf16") else AT.get(name)
    return _turns(access, [values], UPDATES[name], at, is_blind=name == "exch" and not is_used)


def swap(access: mem.Access, expected: Array, desired: Array) -> Array:
    """Compares memory at addresses in turns, and replaces what is as expected. Returns the values
    before."""

    def turn(old: Array, expected: Array, desired: Array) -> Array:
        return np.where(old == expected, desired, old)

    return _turns(access, [expected, desired], turn, None)


def _turns(
    access: mem.Access,
    values: list[Array],
    turn: Callable[..., Array],
    at: np.ufunc | None,
    *,
    is_blind: bool = False,
) -> Array:
    """Runs `turn(old, *values) -> new` for all active lanes, one by one at each address.

    `is_blind`: nothing depends on the values before.
    """
    element, dtype = access.element, memory_dtype(access.element)
    shape = shape_of(access.operation.types.operands[0])
    if access.operation.name == "tt.descriptor_reduce":
        shape = access.addresses.shape[1:]
    full = (access.group.size, *shape)
    result = np.zeros(full, decode(np.zeros(1, dtype), element).dtype)
    launch = access.launch
    for part in resolve(access, is_write=True):
        if launch.is_racing:
            conflicts.note_atomic(access, part)
        if not is_blind:
            check_written(access, part)
        mark_written(part, access.size)
        places, lanes = _active_lanes(part, full, access.size)
        taken = [np.broadcast_to(one, full)[lanes] for one in values]
        flat = launch.memory.elements(part.number, dtype)
        launch.num_bytes += 2 * len(places) * access.size
        if at is not None:
            at.at(flat, places, encode(taken[0], element))
            continue
        old = np.empty(len(places), result.dtype)
        for chosen in _rounds(places):
            before = decode(flat[places[chosen]], element)
            old[chosen] = before
            after = turn(before, *(one[chosen] for one in taken))
            after = round_to(after, "bf16") if element.name == "bf16" else after
            flat[places[chosen]] = encode(after, element)
        result[lanes] = old
    return result


def _active_lanes(part: mem.Part, full: tuple[int, ...], size: int) -> tuple[Array, Any]:
    """Element numbers of the active lanes, and their indices in an array of the whole group."""
    active = np.zeros(full, np.bool_)
    instances = slice(None) if part.instances is None else part.instances
    active[instances] = True if part.mask is None else part.mask
    offsets = np.zeros(full, np.int64)
    offsets[instances] = part.places.scattered().offsets
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
