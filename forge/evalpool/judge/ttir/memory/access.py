"""Loads, stores and atomic updates of many instances at once, checked exactly.

An access is resolved into parts: instances whose windows lie inside one storage, which are views,
and the rest lane by lane. Every lane that the mask lets through must lie inside its storage.

Atomics take their turns in one serial order: that of the group's instances, which a launch may
permute. Lanes at the same address follow each other; lanes at different addresses do not interfere,
so turn k of all addresses is one operation on arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.ttir.memory import storages as mem
from forge.evalpool.judge.ttir.tree import Operation, shape_of
from forge.evalpool.judge.ttir.values import Array, decode, encode, memory_dtype, round_to, take

# --- loads and stores


def load(access: mem.Access, other: Array | None) -> Array:
    """Values at addresses; `other`, else 0, where the mask is False."""
    launch, dtype = access.launch, memory_dtype(access.element)
    results: list[tuple[mem.Part, Array]] = []
    for part in parts_of(access, is_write=False):
        raw = part.places.read(launch.memory.elements(part.number, dtype), access.size)
        check_written(access, part)
        if part.number in launch.watched:
            if launch.is_racing:
                note_read(access, part)
            if part.number in launch.relayed and access.operation.name == "tt.load":
                check_load(access, part)
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
    for part in parts_of(access, is_write=True):
        chosen = raw if part.instances is None else take(raw, part.instances)
        flat = launch.memory.elements(part.number, dtype)
        check = note_write(access, part, flat, chosen) if launch.is_racing else None
        if part.number in launch.relayed and access.operation.name == "tt.store":
            note_store(access, part, flat, chosen)
        is_disjoint = part.places.is_disjoint(access.size)
        if launch.reverses_lanes and not is_disjoint:
            part.places.scattered().write_reversed(flat, access.size, chosen, part.mask)
        else:
            part.places.write(flat, access.size, chosen, part.mask)
            if launch.compares_lanes and not is_disjoint:  # on a card any of the lanes wins
                note_lanes(access, part, flat, chosen)
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


def parts_of(access: mem.Access, *, is_write: bool) -> list[mem.Part]:
    """Parts of an access as `resolve` finds them; those of a fixed one are on its launch's tape."""
    tape, is_fixed = access.launch.tape, access.operation.index in access.launch.tape.fixed.accesses
    if is_fixed and tape.is_whole:
        parts, access.addresses = next(tape.rest)
        return parts
    parts = [*resolve(access, is_write=is_write)]
    if is_fixed:
        tape.add(parts, access)
    return parts


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
    active = array if lanes is None else np.where(lanes, array, array[mem.first_lane(lanes)])
    memory = access.launch.memory
    first, last = memory.find(int(active.min()))[0], memory.find(int(active.max()))[0]
    if first is not None and first == last and first in allowed:
        yield _lanes_of(access, first, active, lanes, instances)
        return
    numbers = memory.find_all(array)
    for number in np.unique(numbers if lanes is None else numbers[lanes]):
        here = numbers == number
        here = here if lanes is None else here & lanes
        if number not in allowed:
            _raise(access, mem.FaultKind.OUT_OF_BOUNDS, here, array, instances)
        active = np.where(here, array, memory.address(int(number)))
        yield _lanes_of(access, int(number), active, here, instances)


def _lanes_of(
    access: mem.Access,
    number: int,
    array: NDArray[np.int64],
    lanes: Array | None,
    instances: NDArray[np.intp] | None,
) -> mem.Part:
    """A part of lanes in one storage. Those beside `lanes` have the address of one in it."""
    memory = access.launch.memory
    storage = memory.storages[number]
    offsets, end = array - memory.address(number), len(storage.data) - access.size
    if int(offsets.min()) < 0 or int(offsets.max()) > end:
        bad = (offsets < 0) | (offsets > end)
        bad = bad if lanes is None else bad & lanes
        _raise(access, mem.FaultKind.OUT_OF_BOUNDS, bad, array, instances)
    rest = access.size - 1  # of a power of two; `%` takes five times as long
    if int(np.bitwise_or.reduce(offsets, axis=None)) & rest:
        _raise(access, mem.FaultKind.MISALIGNED, offsets & rest != 0, array, instances)
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
            note_atomic(access, part)
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


# --- accesses in conflict: of instances of a launch, of lanes of a store, of threads of an instance
#
# Instances and lanes: each granule of a storage that the launch may write to remembers who wrote it
# and who read it. Two accesses of different instances conflict if one is a write that changes the
# value. A conflict is a suspicion only: `evaluate` says how it is confirmed.
#
# Threads: an instance is a block of threads, and the lanes of a block of values are spread over
# them. A thread sees its own stores; another one's only behind a barrier (`tl.debug_barrier`). No
# text says which lanes a thread has: here, a load in one lane of what a lane far from it has stored
# is a fault. Any operation that the compiler may implement by a barrier counts as one.
#
# Not covered: a store that overtakes another thread's load or store, lanes less than NEAR_LANES
# apart within a warp or in a block of several axes, programs of one warp, and what only the choice
# of a layout synchronises.


# --- instances and lanes


def _record(storage: mem.Storage) -> NDArray[np.int32]:
    return np.full(-(-len(storage.data) // storage.granule), mem.NOBODY, np.int32)


def _coarse(places: mem.Places, size: int, granule: int) -> mem.Places:
    """Places as entries of a record: windows of elements smaller than a granule one by one."""
    return places.scattered() if isinstance(places, mem.Windows) and size < granule else places


def note_read(access: mem.Access, part: mem.Part) -> None:
    """Records a read, and suspects a race with a write of another instance."""
    storage, granule = part.storage, part.storage.granule
    places = _coarse(part.places, access.size, granule)
    ids = access.ids(part)
    if storage.writers is not None:
        writers = places.read(storage.writers, granule)
        _report(access, part, (writers != mem.NOBODY) & (writers != ids), writers)
    if storage.readers is None:
        storage.readers = _record(storage)
    before = places.read(storage.readers, granule)
    after = np.where((before == mem.NOBODY) | (before == ids), ids, np.int32(mem.MANY))
    places.write(storage.readers, granule, after, part.mask)
    if not _has_own(access, part, places):
        again = places.read(storage.readers, granule) != ids
        if again.any():
            lanes = again if part.mask is None else again & part.mask
            places.write(storage.readers, granule, np.full_like(ids, mem.MANY), lanes)


def _has_own(access: mem.Access, part: mem.Part, places: mem.Places) -> bool:
    """True if each instance certainly has places of its own."""
    num = access.group.size if part.instances is None else len(part.instances)
    has_all = isinstance(part.places, mem.Windows) and len(part.places.bases) == num
    return access.group.size == 1 or (has_all and places.is_disjoint(access.size))


def note_write(
    access: mem.Access, part: mem.Part, flat: Array, raw: Array
) -> Callable[[], None] | None:
    """Records a write that is about to happen, and suspects races with earlier accesses.

    Returns:
        A check for conflicts within this write, to be called after it; None if there are none.
    """
    storage, granule = part.storage, part.storage.granule
    places = _coarse(part.places, access.size, granule)
    ids = access.ids(part)
    for record in (storage.writers, storage.readers):
        if record is not None:
            others = places.read(record, granule)
            found = (others != mem.NOBODY) & (others != ids)
            _report(access, part, _changed(found, part, flat, raw), others)
    writers = storage.writers = _record(storage) if storage.writers is None else storage.writers
    places.write(writers, granule, ids, part.mask)
    if _has_own(access, part, places):
        return None

    def check() -> None:
        last = places.read(writers, granule)
        _report(access, part, _changed(last != ids, part, flat, raw), last)

    return check


def note_lanes(access: mem.Access, part: mem.Part, flat: Array, raw: Array) -> None:
    """Suspects lanes of one instance that have written other values to one place, behind the write:
    those whose value is not there."""
    storage = part.storage
    found = _changed(np.ones((), np.bool_), part, flat, raw)
    if storage.writers is not None and found.any():
        places = _coarse(part.places, access.size, storage.granule)
        found = found & (places.read(storage.writers, storage.granule) == access.ids(part))
    _report(access, part, found, np.int32(mem.MANY), kind=mem.FaultKind.LANES)


def note_atomic(access: mem.Access, part: mem.Part) -> None:
    """Records an atomic access, and suspects a race with a plain write of another instance."""
    storage, granule = part.storage, part.storage.granule
    places = _coarse(part.places, access.size, granule)
    ids = access.ids(part)
    record = storage.writers = _record(storage) if storage.writers is None else storage.writers
    writers = places.read(record, granule)
    found = (writers != mem.NOBODY) & (writers != mem.MANY) & (writers != ids)
    _report(access, part, found, writers)
    places.write(record, granule, np.full_like(ids, mem.MANY), part.mask)


def _changed(found: Array, part: mem.Part, flat: Array, raw: Array) -> Array:
    """Lanes in `found` whose value is not what the memory has."""
    if not found.any():
        return found
    unsigned = np.dtype(f"u{flat.itemsize}")
    present = part.places.read(flat.view(unsigned), flat.itemsize)
    return found & (present != np.ascontiguousarray(raw).view(unsigned))


def _report(
    access: mem.Access,
    part: mem.Part,
    found: Array,
    others: Array | np.int32,
    *,
    kind: mem.FaultKind = mem.FaultKind.RACE,
) -> None:
    if part.mask is not None:
        found = found & part.mask
    if not found.any():
        return
    fault = access.fault_in(kind, part, found)
    other = int(np.broadcast_to(others, found.shape)[mem.first_lane(found)])
    if other >= 0:
        fault = replace(fault, other=access.group.program_id(other))
    access.launch.suspect(fault)


# --- threads


NEAR_LANES = 16
"""A thread's access of 16 bytes has as many lanes at most, one beside the other."""
WARP_BYTES = 32 * 16
"""Most of a row that the threads of one warp have; lanes behind it belong to another warp."""
LANE_BITS = 21
"""A block has 2^20 elements at most; the bits above are the number of barriers before the store."""
LANEWISE = ("arith.", "math.", "scf.", "cf.", "ub.", "tt.precise_")
SILENT = frozenset(
    {
        *("tt.load", "tt.store", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.addptr"),
        *("tt.make_range", "tt.get_program_id", "tt.get_num_programs", "tt.bitcast", "tt.print"),
        *("tt.fp_to_fp", "tt.clampf", "tt.mulhiui", "tt.assert"),
        *("tt.extern_elementwise", "tt.return"),
    }
)
"""Operations that threads do each on their own, beside those of LANEWISE."""


def may_synchronise(operation: Operation) -> bool:
    """True if an operation may be compiled to something that all threads of an instance wait at."""
    return not operation.name.startswith(LANEWISE) and operation.name not in SILENT


def pass_barrier(_env: object, group: mem.Group) -> None:
    group.launch.num_barriers += 1


def note_store(access: mem.Access, part: mem.Part, flat: Array, raw: Array) -> None:
    """Records the lanes of a store where it changes the value.

    Args:
        flat, raw: elements of the storage before the store, and those that it brings.
    """
    lanes = _lane_numbers(part, shape_of(access.operation.types.operands[1]))
    if lanes is None:
        return
    storage, granule = part.storage, part.storage.granule
    if storage.lanes is None or storage.owners is None:
        num = -(-len(storage.data) // granule)
        storage.lanes = np.full(num, mem.NOBODY, np.int64)
        storage.owners = np.full(num, mem.NOBODY, np.int32)
    places = part.places.scattered()
    changed = _changed(np.ones((), np.bool_), part, flat, raw)
    mask = changed if part.mask is None else changed & part.mask
    marks = (access.launch.num_barriers << LANE_BITS) + lanes
    places.write(storage.lanes, granule, marks, mask)
    places.write(storage.owners, granule, access.ids(part), mask)


def check_load(access: mem.Access, part: mem.Part) -> None:
    """Suspects a load of what lanes of other threads have stored since the last barrier."""
    storage, granule = part.storage, part.storage.granule
    shape = shape_of(access.operation.types.results[0])
    lanes = _lane_numbers(part, shape)
    if storage.lanes is None or storage.owners is None or lanes is None:
        return
    places = part.places.scattered()
    marks = places.read(storage.lanes, granule)
    owners = places.read(storage.owners, granule)
    is_recent = (marks >> LANE_BITS) == access.launch.num_barriers
    stored = marks & ((1 << LANE_BITS) - 1)
    is_far = np.abs(stored - lanes) >= NEAR_LANES
    if len(shape) == 1:
        in_warp = WARP_BYTES // access.size
        is_far |= stored // in_warp != lanes // in_warp
    found = is_recent & is_far & (marks != mem.NOBODY) & (owners == access.ids(part))
    if part.mask is not None:
        found = found & part.mask
    if found.any():
        access.launch.suspect(access.fault_in(mem.FaultKind.BARRIER, part, found))


def _lane_numbers(part: mem.Part, shape: Sequence[int]) -> NDArray[np.int64] | None:
    """`[1, *sizes]` Position in the block of each place of an access; None for other ranks."""
    places = part.places
    sizes = places.shape if isinstance(places, mem.Windows) else places.offsets.shape[1:]
    if len(sizes) != len(shape):
        return None
    lanes = np.zeros((1,) * (len(sizes) + 1), np.int64)
    for axis, count in enumerate(sizes):
        form = [1] * (len(sizes) + 1)
        form[axis + 1] = count
        lanes = lanes + (np.arange(count, dtype=np.int64) * prod(shape[axis + 1 :])).reshape(form)
    return lanes
