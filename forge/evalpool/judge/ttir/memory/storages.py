"""Memory of a program for the evaluator: storages, places in them, the state of a launch.

Every storage gets made-up addresses, far apart from all others, so that a pointer is an integer and
still belongs to one storage. They look like a card's and are drawn at random: no bit
of them tells a kernel that it is evaluated. Beside the bytes there may be: which were ever written
(`Storage.written`), and for one launch which instance wrote and read each granule.

The lanes of an access name strided windows of a storage, or an offset each. Both read and write any
flat array that has one entry per so many bytes of the storage: its elements, the record of written
bytes, the record of writers.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.ttir.tree import Operation, Scalar
from forge.evalpool.judge.ttir.values import Array, Lanes, Unsupported

# --- storages


SPACE = 1 << 40
BASE = 0x7F << 40
"""Addresses are from BASE to BASE + SPACE, as those of torch's allocator on a card mostly are."""
ALIGNMENTS = 512, 2 << 20
"""torch gives either."""
NOBODY, MANY = -1, -2


class FaultKind(StrEnum):
    OUT_OF_BOUNDS = "out_of_bounds"
    MISALIGNED = "misaligned"
    UNINITIALISED = "uninitialised"
    """A read of bytes that nothing has written. It counts if an output depends on it."""
    RACE = "race"
    """Two instances of a launch access the same bytes in no order, and one writes another value.
    It counts if an output depends on the order."""
    LANES = "lanes"
    """Two lanes of one store write other values to one place. It counts as a race does."""
    BARRIER = "barrier"
    """A load of what another thread of the same instance has stored, without a barrier between."""
    ORDER = "order"
    """Results of atomics tell instances apart by the order in which they ran. It counts as a race
    does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    kind: FaultKind
    operation: str
    """Name of the operation, such as `tt.load`."""
    index: int
    """Position of the operation in the text (`tree.Operation.index`)."""
    line: int
    """Line of the TTIR text."""
    storage: int | None = None
    """None if the address belongs to none."""
    offset: int = 0
    """In bytes, from the start of the storage; may be negative or behind its end."""
    num_bytes: int = 0
    """Size of the element."""
    instance: tuple[int, int, int] = (0, 0, 0)
    """Program id of the instance."""
    other: tuple[int, int, int] | None = None
    """Program id of the other instance of a race, where it is known."""
    is_masked: bool = True
    """False for a load or store without a mask."""


class Faulted(Exception):
    """A launch cannot go on: its memory error is the first argument."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


@dataclass(slots=True, kw_only=True)
class Storage:
    data: NDArray[np.uint8]
    """Contiguous; views of it are what kernels read and write."""
    granule: int = 1
    """Bytes that one entry of `written` stands for: the smallest element stored here."""
    written: NDArray[np.bool_] | None = None
    """By granule: initialised. None where all of it is."""
    writers: NDArray[np.int32] | None = None
    """By granule: last instance of the current launch that wrote it, or NOBODY."""
    readers: NDArray[np.int32] | None = None
    """By granule: instance of the current launch that read it, NOBODY or MANY."""

    lanes: NDArray[np.int64] | None = None
    """By granule: lane of the current launch that stored it last, and the barriers before
    (`conflicts`)."""
    owners: NDArray[np.int32] | None = None
    """By granule: instance of that lane."""

    def forget(self) -> None:
        """Poisons the content: bytes that nothing has written from now on."""
        self.written = np.zeros(-(-len(self.data) // self.granule), np.bool_)

    def settle(self) -> None:
        """Notes after a launch whether all of it is initialised, and drops what was of it."""
        if self.written is not None and self.written.all():
            self.written = None
        self.writers = self.readers = self.lanes = self.owners = None


class Memory:
    """All storages of a program, by their numbers, each with addresses at random."""

    def __init__(self, storages: Sequence[Storage]) -> None:
        """Raises Unsupported without room."""
        self.storages = storages
        self._views: dict[tuple[int, str], NDArray[np.generic]] = {}
        draw = random.SystemRandom()
        sizes = [len(one.data) for one in storages]
        self._tapes = dict[int, Tape]()
        self._order = draw.sample(range(len(sizes)), len(sizes))
        """Storages by address."""
        room = SPACE - sum(sizes) - len(sizes) * max(ALIGNMENTS)
        if room <= len(sizes):
            raise Unsupported("the program's storages need more memory than a card has")
        most = room // (len(sizes) + 1)
        self._starts, bounds = [0] * len(sizes), [BASE]
        end = BASE
        for number in self._order:
            unit = draw.choice(ALIGNMENTS)
            start = -(-(end + draw.randrange(most // 2, most)) // unit) * unit
            self._starts[number] = start
            bounds.append((end + start) // 2)
            end = start + sizes[number]
        self._bounds = [BASE, *bounds[2:], BASE + SPACE]
        """Addresses where the range of each storage of the order begins, halfway from the one
        before; and the end of the last one's."""

    def address(self, storage: int, offset: int = 0) -> int:
        """Made-up address of a byte of a storage."""
        return self._starts[storage] + offset

    def find(self, address: int) -> tuple[int | None, int]:
        """Storage that an address belongs to, and the offset from its start in bytes."""
        place = bisect_right(self._bounds, address) - 1
        if not 0 <= place < len(self._order):
            return None, address
        number = self._order[place]
        return number, address - self._starts[number]

    def find_all(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Storages that addresses belong to; NOBODY where there is none."""
        numbers = np.array([NOBODY, *self._order, NOBODY], np.int64)
        return numbers[np.searchsorted(self._bounds, addresses, side="right")]

    def tape(self, key: int, fixed: Fixed) -> Tape:
        """The tape of a launch that begins; an empty one where the others take up the memory."""
        found = self._tapes.get(key)
        if found is not None and found.is_whole:
            found.skipped, found.rest = found.fixed.skipped, iter(found.accesses)
        else:  # the first one, or the last one failed
            is_full = sum(one.num_bytes for one in self._tapes.values()) > MAX_TAPE_BYTES
            found = self._tapes[key] = Tape() if is_full else Tape(fixed)
        return found

    def elements(self, storage: int, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        """A flat view of a storage as elements of a type, as many as fit."""
        key = (storage, dtype.char)
        found = self._views.get(key)
        if found is None:
            data = self.storages[storage].data
            whole = len(data) // dtype.itemsize * dtype.itemsize
            found = self._views[key] = data[:whole].view(dtype)
        return found


# --- places


Offsets = NDArray[np.int64]
Lane: TypeAlias = "tuple[Any, ...]"
"""Indices of one lane in an array of instances and blocks."""


@dataclass(slots=True)
class Windows:
    """The same strided window at a base of each instance. Offsets and strides in bytes."""

    bases: Offsets
    """`[n or 1]`"""
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    """Sizes of the window; 1 along axes that the address does not vary along."""

    @property
    def lowest(self) -> int:
        """Lowest offset within the window, relative to its base."""
        return sum(min(stride * (size - 1), 0) for stride, size in self._axes())

    @property
    def highest(self) -> int:
        """Highest offset within the window, relative to its base."""
        return sum(max(stride * (size - 1), 0) for stride, size in self._axes())

    @property
    def rank(self) -> int:
        return len(self.shape)

    def _axes(self) -> list[tuple[int, int]]:
        return list(zip(self.strides, self.shape, strict=True))

    def step(self) -> int | None:
        """Distance between the bases of consecutive instances, where it is always the same."""
        if len(self.bases) == 1:
            return 0
        step = int(self.bases[1]) - int(self.bases[0])
        if len(self.bases) == 2 or bool((np.diff(self.bases) == step).all()):
            return step
        return None

    def is_aligned(self, unit: int) -> bool:
        """True if all offsets are multiples of `unit`."""
        if any(stride % unit for stride, size in self._axes() if size > 1):
            return False
        return not bool((self.bases % unit).any())

    def view(self, flat: Array, unit: int) -> Array | None:
        """A strided view of a flat array of entries of `unit` bytes; None if there is none."""
        step = self.step()
        if step is None:
            return None
        size = flat.itemsize
        strides = (step // unit * size, *(stride // unit * size for stride in self.strides))
        offset = int(self.bases[0]) // unit * size
        return np.ndarray(
            (len(self.bases), *self.shape), flat.dtype, buffer=flat, offset=offset, strides=strides
        )

    def read(self, flat: Array, unit: int) -> Array:
        """Entries of a flat array; may be a view of it."""
        view = self.view(flat, unit)
        if view is not None:
            return view
        lowest, highest = self.lowest // unit, self.highest // unit
        size = flat.itemsize
        windows: Array = np.ndarray(
            (len(flat) - (highest - lowest), *self.shape),
            flat.dtype,
            buffer=flat,
            offset=-lowest * size,
            strides=(size, *(stride // unit * size for stride in self.strides)),
        )
        return windows[self.bases // unit + lowest]

    def write(self, flat: Array, unit: int, values: Array, mask: Array | None) -> None:
        """Writes lanes in order, so that the last one wins."""
        view = self.view(flat, unit)
        wanted = (len(self.bases), *self.shape)
        shapes = [values.shape] if mask is None else [values.shape, mask.shape]
        fits = all(a in (1, b) for each in shapes for a, b in zip(each, wanted, strict=True))
        if view is None or not fits:
            self.scattered().write(flat, unit, values, mask)
        elif mask is None:
            view[...] = values
        else:
            np.copyto(view, values, where=mask)

    def scattered(self) -> Scattered:
        """The same places, one by one."""
        offsets = self.bases.reshape(-1, *(1,) * len(self.shape))
        for axis, (stride, size) in enumerate(self._axes()):
            if size > 1:
                shape = [1] * (len(self.shape) + 1)
                shape[axis + 1] = size
                offsets = offsets + (np.arange(size, dtype=np.int64) * stride).reshape(shape)
        return Scattered(offsets)

    def is_disjoint(self, unit: int) -> bool:
        """True if certainly no two lanes of different instances share an entry."""
        step = self.step()
        if step is None:
            return False
        axes = sorted(
            (abs(stride), size)
            for stride, size in [(step, len(self.bases)), *self._axes()]
            if size > 1
        )
        extent = unit
        for stride, size in axes:
            if stride < extent:
                return False
            extent = stride * (size - 1) + extent
        return True


@dataclass(slots=True)
class Scattered:
    """An offset in bytes for each lane: compact, `[n or 1, ...]`."""

    offsets: Offsets

    @property
    def rank(self) -> int:
        return self.offsets.ndim - 1

    def scattered(self) -> Scattered:
        return self

    def read(self, flat: Array, unit: int) -> Array:
        """Entries of a flat array, as a copy."""
        return flat.take(self.offsets >> (unit.bit_length() - 1))

    def write(self, flat: Array, unit: int, values: Array, mask: Array | None) -> None:
        """Writes lanes in order, so that the last one wins."""
        places = self.offsets // unit if unit > 1 else self.offsets
        places, values, lanes = np.broadcast_arrays(places, values, True if mask is None else mask)
        if mask is None:
            flat[places] = values
        else:
            flat[places[lanes]] = values[lanes]

    def write_reversed(self, flat: Array, unit: int, values: Array, mask: Array | None) -> None:
        """Writes the lanes of each instance from the last to the first, which wins."""
        arrays: list[Any] = [self.offsets, values] if mask is None else [self.offsets, values, mask]
        offsets, values, *masks = (
            one.reshape(len(one), -1)[:, ::-1] for one in np.broadcast_arrays(*arrays)
        )
        Scattered(offsets).write(flat, unit, values, masks[0] if masks else None)

    def is_disjoint(self, unit: int) -> bool:
        """Always False: the places are unknown."""
        return False


Places = Windows | Scattered


class Part(NamedTuple):
    instances: NDArray[np.intp] | None
    """Positions in the group; None for all of it."""
    number: int
    storage: Storage
    places: Places
    mask: Array | None


def windows_of(addresses: Offsets, origin: int) -> Windows | None:
    """Addresses as windows whose offsets count from `origin`; None where they are not strided."""
    shape, rank = addresses.shape[1:], addresses.ndim - 1
    bases, strides = addresses.reshape(len(addresses), -1)[:, 0], list[int]()
    for axis, size in enumerate(shape):
        second = [0] * (rank + 1)
        second[axis + 1] = min(size - 1, 1)
        strides.append(int(addresses[tuple(second)] - bases[0]))
    found = Windows(bases, tuple(strides), shape)
    way = int(addresses.flat[-1]) - int(bases[-1])  # most that have no strides show it in the end
    is_strided = way == found.lowest + found.highest
    if not is_strided or not np.array_equal(found.scattered().offsets, addresses):
        return None
    return Windows(bases - origin, tuple(strides), shape)


# --- launch


MAX_TAPE_BYTES = 48 << 20
"""Memory of a program's tapes; places beyond it are found again by each call."""


class Fixed(NamedTuple):
    """Operations of a kernel, by index."""

    accesses: frozenset[int] = frozenset()
    """Loads and stores whose places no input has a part in."""
    skipped: frozenset[int] = frozenset()
    """Operations that compute nothing but such places."""


@dataclass(slots=True)
class Tape:
    """The places of a launch's fixed accesses, in their order."""

    fixed: Fixed = field(default_factory=Fixed)
    is_whole: bool = False
    """True once a launch has ended: later ones read."""
    num_bytes: int = 0
    skipped: frozenset[int] = frozenset()
    """Operations that a launch leaves out."""
    rest: Iterator[tuple[list[Part], Offsets]] = field(default_factory=lambda: iter(()))
    accesses: list[tuple[list[Part], Offsets]] = field(default_factory=list[Any])
    """Parts of each, and an array of its shape."""

    def add(self, parts: list[Part], access: Access) -> None:
        shapes = [one.shape for one in (access.addresses, access.mask) if one is not None]
        shaped = np.broadcast_to(np.int64(0), np.broadcast_shapes(*shapes))
        self.accesses.append((parts, shaped))
        self.num_bytes += 400 * (1 + len(parts))  # what Python has for each object's own fields
        for one in parts:
            found = one.places.bases if isinstance(one.places, Windows) else one.places.offsets
            self.num_bytes += found.nbytes + (0 if one.mask is None else one.mask.nbytes)
        if self.num_bytes > MAX_TAPE_BYTES:
            self.fixed, self.num_bytes = Fixed(), 0
            self.accesses.clear()


MAX_SUSPICIONS = 20
"""Suspicions of each kind that one launch reports: those of one kind never hide another."""
UNMASKED = {"tt.load": 1, "tt.store": 2}
"""Operands of an access without a mask."""


@dataclass(slots=True, kw_only=True)
class Launch:
    """State of one launch that its accesses share."""

    memory: Memory
    grid: tuple[int, int, int]
    reachable: frozenset[int]
    """Storages that its arguments point to. An access to any other is out of bounds, whatever lies
    there: a pointer may have been moved from one storage into another."""
    watched: frozenset[int]
    """Storages that this launch may write to: those of arguments that the kernel stores to."""
    is_racing: bool
    """True if accesses of different instances are compared."""
    compares_lanes: bool = False
    """True if values are compared that lanes of one store write to one place."""
    reverses_lanes: bool = False
    """True if of lanes that store to one place the first wins, not the last."""
    num_bytes: int = 0
    """Bytes that active lanes have loaded and stored so far."""
    fuel: int
    """Steps that are left."""
    relayed: frozenset[int] = frozenset()
    """Storages whose loads are compared with stores of other threads of the same instance."""
    is_serial: bool = False
    """True if each instance is a group of its own, and waits for others by yielding."""
    depth: int = 0
    """Calls that are open."""
    num_barriers: int = 0
    """Operations so far at which threads may wait for each other."""
    seen: dict[Any, int] = field(default_factory=dict[Any, int])
    """By `Decision`, the sides that were taken by this launch and those before."""
    tape: Tape = field(default_factory=Tape)
    suspicions: list[Fault] = field(default_factory=list[Fault])

    def spend(self, steps: int) -> None:
        """Counts steps. Raises Unsupported where none are left."""
        self.fuel -= steps
        if self.fuel < 0:
            raise Unsupported("the kernel runs for too many steps, or waits for ever")

    def suspect(self, fault: Fault) -> None:
        """Notes a race or an uninitialised read: the first of each operation and kind."""
        alike = [one.index for one in self.suspicions if one.kind is fault.kind]
        if len(alike) < MAX_SUSPICIONS and fault.index not in alike:
            self.suspicions.append(fault)


@dataclass(slots=True, kw_only=True)
class Group:
    """Instances that run together."""

    launch: Launch
    ids: NDArray[np.int32]
    """Position of each instance in the grid, `x` fastest; `[n]`."""

    @property
    def size(self) -> int:
        return len(self.ids)

    def program_ids(self, axis: int) -> NDArray[np.int32]:
        """Program ids along an axis: `[n]`, or `[1]` where they are the same."""
        x, y, z = self.launch.grid
        if (x, y, z)[axis] == 1:
            return np.zeros(1, np.int32)
        if axis == 0:
            return self.ids if y == z == 1 else self.ids % np.int32(x)
        found = self.ids // np.int32(x)
        return found % np.int32(y) if axis == 1 else found // np.int32(y)

    def subset(self, lanes: Lanes) -> Group:
        return Group(launch=self.launch, ids=self.ids[lanes])

    def elements(self, count: int) -> Group:
        """A group with an instance for each of `count` elements, which have no program ids."""
        return Group(launch=self.launch, ids=np.zeros(count, np.int32))

    def program_id(self, instance: int) -> tuple[int, int, int]:
        """Program id of an instance by its position in the grid."""
        x, y, _ = self.launch.grid
        return instance % x, instance // x % y, instance // (x * y)


@dataclass(slots=True)
class Access:
    """One operation of a group on memory: elements at addresses, where a mask is True."""

    group: Group
    addresses: Offsets
    """Compact, `[n or 1, ...]`."""
    mask: Array | None
    operation: Operation
    element: Scalar
    size: int = field(init=False)
    """Bytes of an element."""

    def __post_init__(self) -> None:
        self.size = self.element.num_bytes

    @property
    def launch(self) -> Launch:
        return self.group.launch

    def ids(self, part: Part) -> NDArray[np.int32]:
        """Positions in the grid of a part's instances, with an axis for each of the block."""
        ids = self.group.ids if part.instances is None else self.group.ids[part.instances]
        return ids.reshape(-1, *(1,) * part.places.rank)

    def fault_in(self, kind: FaultKind, part: Part, found: Array) -> Fault:
        """A memory error of the first lane of a part that is found."""
        lane = first_lane(found)
        offset = int(np.broadcast_to(part.places.scattered().offsets, found.shape)[lane])
        address = self.launch.memory.address(part.number, offset)
        return self.fault_at(kind, address, part.instances, lane)

    def fault_at(
        self, kind: FaultKind, address: int, instances: NDArray[np.intp] | None, lane: Lane
    ) -> Fault:
        """A memory error of a lane of some instances of the group, of all where None."""
        storage, offset = self.launch.memory.find(address)
        instance = int(lane[0] if instances is None else instances[lane[0]])
        return Fault(
            kind=kind,
            operation=self.operation.name,
            index=self.operation.index,
            line=self.operation.line,
            storage=storage,
            offset=offset,
            num_bytes=self.size,
            instance=self.group.program_id(int(self.group.ids[min(instance, self.group.size - 1)])),
            is_masked=len(self.operation.operands) != UNMASKED.get(self.operation.name),
        )


def first_lane(found: Array) -> Lane:
    return np.unravel_index(int(np.argmax(found)), found.shape)
