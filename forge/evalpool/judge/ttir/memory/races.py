"""Conflicts between instances of one launch, and between lanes of one store.

Each granule of a storage that the launch may write to remembers who wrote it and who read it. Two
accesses of different instances conflict if one is a write that changes the value; equal values are
no conflict. A conflict is a suspicion only: `evaluate` says how it is confirmed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.memory.places import Places, Windows
from forge.evalpool.judge.ttir.memory.storages import MANY, NOBODY, FaultKind, Storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.memory.places import Part
    from forge.evalpool.judge.ttir.tree import Operation
    from forge.evalpool.judge.ttir.values import Array


def _record(storage: Storage) -> NDArray[np.int32]:
    return np.full(-(-len(storage.data) // storage.granule), NOBODY, np.int32)


def _ids(group: Group, part: Part, rank: int) -> NDArray[np.int32]:
    ids = group.ids if part.instances is None else group.ids[part.instances]
    return ids.reshape(-1, *(1,) * rank)


def _rank(part: Part) -> int:
    if isinstance(part.places, Windows):
        return len(part.places.shape)
    return part.places.offsets.ndim - 1


def _coarse(places: Places, size: int, granule: int) -> Places:
    """Places as entries of a record: windows of elements smaller than a granule one by one."""
    return places.scattered() if isinstance(places, Windows) and size < granule else places


def note_read(group: Group, part: Part, operation: Operation, size: int) -> None:
    """Records a read, and suspects a race with a write of another instance."""
    storage, granule = part.storage, part.storage.granule
    places = _coarse(part.places, size, granule)
    ids = _ids(group, part, _rank(part))
    if storage.writers is not None:
        writers = places.read(storage.writers, granule)
        found = (writers != NOBODY) & (writers != ids)
        _report(group, part, operation, size, found, writers)
    if storage.readers is None:
        storage.readers = _record(storage)
    before = places.read(storage.readers, granule)
    after = np.where((before == NOBODY) | (before == ids), ids, np.int32(MANY))
    places.write(storage.readers, granule, after, part.mask)
    if group.size > 1 and not (places.is_disjoint(size) and _has_all(group, part)):
        again = places.read(storage.readers, granule) != ids
        if again.any():
            lanes = again if part.mask is None else again & part.mask
            places.write(storage.readers, granule, np.full_like(ids, MANY), lanes)


def _has_all(group: Group, part: Part) -> bool:
    """True if each instance has places of its own."""
    num = group.size if part.instances is None else len(part.instances)
    return isinstance(part.places, Windows) and len(part.places.bases) == num


def note_write(
    group: Group, part: Part, operation: Operation, flat: Array, raw: Array
) -> Callable[[], None] | None:
    """Records a write that is about to happen, and suspects races with earlier accesses.

    Returns:
        A check for conflicts within this write, to be called after it; None if there are none.
    """
    storage, granule = part.storage, part.storage.granule
    places = _coarse(part.places, flat.itemsize, granule)
    size = flat.itemsize
    ids = _ids(group, part, _rank(part))
    if storage.writers is None:
        storage.writers = _record(storage)
    else:
        writers = places.read(storage.writers, granule)
        found = (writers != NOBODY) & (writers != ids)
        _report(group, part, operation, size, _changed(found, part, flat, raw), writers)
    if storage.readers is not None:
        readers = places.read(storage.readers, granule)
        found = (readers != NOBODY) & (readers != ids)
        _report(group, part, operation, size, _changed(found, part, flat, raw), readers)
    places.write(storage.writers, granule, ids, part.mask)
    if group.size == 1 or (places.is_disjoint(size) and _has_all(group, part)):
        return None
    writers = storage.writers

    def check() -> None:
        last = places.read(writers, granule)
        found = last != ids
        _report(group, part, operation, size, _changed(found, part, flat, raw), last)

    return check


def note_lanes(group: Group, part: Part, operation: Operation, flat: Array, raw: Array) -> None:
    """Suspects lanes of one instance that have written other values to one place, behind the write:
    those whose value is not there."""
    storage, size = part.storage, flat.itemsize
    found = _changed(np.ones((), np.bool_), part, flat, raw)
    if storage.writers is not None and found.any():
        places = _coarse(part.places, size, storage.granule)
        found = found & (
            places.read(storage.writers, storage.granule) == _ids(group, part, _rank(part))
        )
    _report(group, part, operation, size, found, np.int32(MANY), kind=FaultKind.LANES)


def note_atomic(group: Group, part: Part, operation: Operation, size: int) -> None:
    """Records an atomic access, and suspects a race with a plain write of another instance."""
    storage, granule = part.storage, part.storage.granule
    places = _coarse(part.places, size, granule)
    ids = _ids(group, part, _rank(part))
    if storage.writers is None:
        storage.writers = _record(storage)
    else:
        writers = places.read(storage.writers, granule)
        found = (writers != NOBODY) & (writers != MANY) & (writers != ids)
        _report(group, part, operation, size, found, writers)
    places.write(storage.writers, granule, np.full_like(ids, MANY), part.mask)


def _changed(found: Array, part: Part, flat: Array, raw: Array) -> Array:
    """Lanes in `found` whose value is not what the memory has."""
    if not found.any():
        return found
    unsigned = np.dtype(f"u{flat.itemsize}")
    present = part.places.read(flat.view(unsigned), flat.itemsize)
    return found & (present != np.ascontiguousarray(raw).view(unsigned))


def _report(
    group: Group,
    part: Part,
    operation: Operation,
    size: int,
    found: Array,
    others: Array | np.int32,
    *,
    kind: FaultKind = FaultKind.RACE,
) -> None:
    if part.mask is not None:
        found = found & part.mask
    if not found.any():
        return
    lane = np.unravel_index(int(np.argmax(found)), found.shape)
    places = part.places.scattered() if isinstance(part.places, Windows) else part.places
    offset = int(np.broadcast_to(places.offsets, found.shape)[lane])
    other = int(np.broadcast_to(others, found.shape)[lane])
    instance = int(lane[0] if part.instances is None else part.instances[lane[0]])
    address = group.launch.memory.address(part.number, offset)
    fault = group.fault(kind, operation, address, size, instance)
    if other >= 0:
        fault = replace(fault, other=group.program_id(other))
    group.launch.suspect(fault)
