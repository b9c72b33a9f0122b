"""Accesses in conflict: of instances of a launch, of lanes of a store, of threads of an instance.

**Instances and lanes.** Each granule of a storage that the launch may write to remembers who wrote
it and who read it. Two accesses of different instances conflict if one is a write that changes the
value; equal values are no conflict. A conflict is a suspicion only: `evaluate` says how it is
confirmed.

**Threads.** An instance is a block of threads, and the lanes of a block of values are spread over
them. A thread sees its own stores; another one's only behind a barrier (`tl.debug_barrier`). No
text says which lanes a thread has: here, a load in one lane of what a lane far from it has stored
is a fault. Any operation that the compiler may implement by a barrier counts as one.

Not covered: a store that overtakes another thread's load or store, lanes less than NEAR_LANES apart
within a warp or in a block of several axes, programs of one warp, and what only the choice of a
layout synchronises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.ttir.memory import storages as mem
from forge.evalpool.judge.ttir.tree import Operation, shape_of
from forge.evalpool.judge.ttir.values import Array

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
    lanes = _lanes(part, shape_of(access.operation.types.operands[1]))
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
    lanes = _lanes(part, shape)
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


def _lanes(part: mem.Part, shape: Sequence[int]) -> NDArray[np.int64] | None:
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
