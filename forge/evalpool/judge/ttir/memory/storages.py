"""Memory of a program for the evaluator: its storages, their addresses, what happened to them.

Every storage gets made-up addresses, far apart from all others, so that a pointer is an integer and
still belongs to one storage. They look like a card's and are drawn at random: no bit
of them tells a kernel that it is evaluated. Beside the bytes there may be: which were ever written
(`Storage.written`), and for one launch which instance wrote and read each granule.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.values import Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPACE = 1 << 40
BASE = 0x7F << 40
"""Addresses are from BASE to BASE + SPACE, as those of torch's allocator on a card mostly are."""
ALIGNMENTS = 512, 2 << 20
"""torch gives either."""
NEAR = 4 << 20
"""Most bytes between storages beside each other."""
NOBODY, MANY = -1, -2


class FaultKind(StrEnum):
    """Kind of a memory error."""

    OUT_OF_BOUNDS = "out_of_bounds"
    MISALIGNED = "misaligned"
    UNINITIALISED = "uninitialised"
    """A read of bytes that nothing has written. It counts if an output depends on it."""
    RACE = "race"
    """Two instances of a launch access the same bytes in no order, and one writes another value.
    It counts if an output depends on the order."""
    LANES = "lanes"
    """Two lanes of one store write other values to one place. It counts as a race does."""
    ADDRESS = "address"
    """Bits of an address are used as a number. It counts if an output changes with the places of
    the storages."""
    BARRIER = "barrier"
    """A load of what another thread of the same instance has stored, without a barrier between."""
    ORDER = "order"
    """Results of atomics tell instances apart by the order in which they ran. It counts as a race
    does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A memory error of a launch."""

    kind: FaultKind
    operation: str
    """Name of the operation, such as `tt.load`."""
    index: int
    """Position of the operation in the text (`tree.Operation.index`)."""
    line: int
    """Line of the TTIR text."""
    storage: int | None
    """None if the address belongs to none."""
    offset: int
    """In bytes, from the start of the storage; may be negative or behind its end."""
    num_bytes: int
    """Size of the element."""
    instance: tuple[int, int, int]
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
    """A storage's bytes and their history."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Addresses of storages."""

    starts: list[int]
    """By storage: its first address."""
    order: list[int]
    """Storages by address."""
    bounds: list[int]
    """Addresses where the range of each storage of `order` begins, halfway from the one before; and
    the end of the last one's."""

    @classmethod
    def draw(cls, sizes: list[int], *, is_near: bool, alignment: int | None) -> Layout:
        """Addresses at random for storages of these sizes. Raises Unsupported without room."""
        draw = random.SystemRandom()
        count = len(sizes)
        order = draw.sample(range(count), count)
        room = SPACE - sum(sizes) - count * max(ALIGNMENTS)
        if room <= count:
            raise Unsupported("the program's storages need more memory than a card has")
        most = min(room // (count + 1), NEAR) if is_near else room // (count + 1)
        starts, bounds = [0] * count, [BASE]
        end = BASE + draw.randrange((room - most * count) if is_near else 1)
        for number in order:
            unit = alignment or draw.choice(ALIGNMENTS)
            gap = draw.randrange(most // 2, most)
            starts[number] = -(-(end + gap) // unit) * unit
            bounds.append((end + starts[number]) // 2)
            end = starts[number] + sizes[number]
        del bounds[1:2]  # the first one's range begins at BASE
        return cls(starts=starts, order=order, bounds=[*bounds, BASE + SPACE])


@dataclass(slots=True)
class Memory:
    """All storages of a program, by their numbers."""

    storages: Sequence[Storage]
    layout: Layout = field(init=False)
    """Addresses of the storages; may be put back after `move`."""
    _views: dict[tuple[int, str], NDArray[np.generic]] = field(
        default_factory=dict[tuple[int, str], "NDArray[np.generic]"]
    )

    def __post_init__(self) -> None:
        self.move()

    def move(self, *, is_near: bool = False, alignment: int | None = None) -> None:
        """Draws new addresses for all storages.

        Args:
            is_near: storages lie beside each other, as a card's allocator places them. Then an
                access behind the end of one may hit another.
            alignment: that of all storages; None for any of ALIGNMENTS for each.
        """
        sizes = [len(one.data) for one in self.storages]
        self.layout = Layout.draw(sizes, is_near=is_near, alignment=alignment)

    def address(self, storage: int, offset: int = 0) -> int:
        """Made-up address of a byte of a storage."""
        return self.layout.starts[storage] + offset

    def find(self, address: int) -> tuple[int | None, int]:
        """Storage that an address belongs to, and the offset from its start in bytes."""
        layout = self.layout
        place = bisect_right(layout.bounds, address) - 1
        if not 0 <= place < len(layout.order):
            return None, address
        number = layout.order[place]
        return number, address - layout.starts[number]

    def find_all(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Storages that addresses belong to; NOBODY where there is none."""
        layout = self.layout
        numbers = np.array([NOBODY, *layout.order, NOBODY], np.int64)
        return numbers[np.searchsorted(layout.bounds, addresses, side="right")]

    def elements(self, storage: int, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        """A flat view of a storage as elements of a type, as many as fit."""
        key = (storage, dtype.char)
        found = self._views.get(key)
        if found is None:
            data = self.storages[storage].data
            whole = len(data) // dtype.itemsize * dtype.itemsize
            found = self._views[key] = data[:whole].view(dtype)
        return found
