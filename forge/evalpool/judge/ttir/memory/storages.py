# pyright: strict
"""Memory of a program for the evaluator: its storages, their addresses, what happened to them.

Every storage gets a range of made-up addresses, far apart from all others, so that a pointer is an
integer and still belongs to one storage. It begins at a random place of its range: no kernel knows
the distance of two storages. Beside the bytes there may be: which were ever written
(`Storage.written`), and for one launch which instance wrote and read each granule.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SPACING_BITS = 42
"""Addresses of two storages differ by 2^42, more than any 32-bit offset of 64-bit elements."""
BASE = 1 << (SPACING_BITS - 1)
GAP_BITS, GAP_ALIGNMENT_BITS = 40, 12
"""A storage lies up to 2^40 behind BASE, at a page."""
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

    def forget(self) -> None:
        """Poisons the content: bytes that nothing has written from now on."""
        self.written = np.zeros(-(-len(self.data) // self.granule), np.bool_)

    def settle(self) -> None:
        """Notes after a launch whether all of it is initialised, and drops what was of it."""
        if self.written is not None and self.written.all():
            self.written = None
        self.writers = self.readers = None


@dataclass(slots=True)
class Memory:
    """All storages of a program, by their numbers."""

    storages: Sequence[Storage]
    _gaps: list[int] = field(init=False)
    """By storage: its distance from BASE."""
    _views: dict[tuple[int, str], NDArray[np.generic]] = field(
        default_factory=dict[tuple[int, str], "NDArray[np.generic]"]
    )

    def __post_init__(self) -> None:
        pages = GAP_BITS - GAP_ALIGNMENT_BITS
        self._gaps = [secrets.randbits(pages) << GAP_ALIGNMENT_BITS for _ in self.storages]

    def address(self, storage: int, offset: int = 0) -> int:
        """Made-up address of a byte of a storage."""
        return (storage << SPACING_BITS) + BASE + self._gaps[storage] + offset

    def find(self, address: int) -> tuple[int | None, int]:
        """Storage that an address belongs to, and the offset from its start in bytes."""
        number = address >> SPACING_BITS
        if not 0 <= number < len(self.storages):
            return None, address
        return number, address - self.address(number)

    def elements(self, storage: int, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        """A flat view of a storage as elements of a type, as many as fit."""
        key = (storage, dtype.char)
        found = self._views.get(key)
        if found is None:
            data = self.storages[storage].data
            whole = len(data) // dtype.itemsize * dtype.itemsize
            found = self._views[key] = data[:whole].view(dtype)
        return found
