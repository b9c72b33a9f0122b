# pyright: strict
"""Buffers of one program, each alone between ranges that nothing is mapped to.

Used by `run.py`. An access past a buffer's mapping is a fault of the card, not luck. Memory comes
in units of 2 MiB, so a mapping has slack: `Placement.END` puts the buffer at its end (an access
behind it faults), `Placement.START` at its start (an access before it faults). The slack holds a
pattern, which is checked. Physical memory is filled before anything is mapped for a program.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from forge.evalpool.judge.driver.driver import OUT_OF_MEMORY, DriverError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from forge.evalpool.judge.driver.driver import Driver

ALIGNMENT_BYTES = 16
"""Alignment that an address of a captured program promises; more must not be relied on."""
GUARD_BYTES = 1 << 30
"""Unmapped range before and behind each mapping: addresses cost nothing, strides are long."""
KEPT_BYTES = 1 << 30
"""Physical memory that is kept, unmapped, for the next program: creating it takes longer than all
other calls for a small program together."""
MAX_KEPT_UNITS = 32
"""Units of a piece of memory that is kept."""


class Placement(StrEnum):
    """Side of its mapping that a buffer touches."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Place of one buffer, relative to the program's reserved range."""

    mapping: int
    """Offset of its mapping; the guards lie before and behind it."""
    mapped_bytes: int
    num_bytes: int

    def offset(self, placement: Placement) -> int:
        """Offset of the buffer's first byte."""
        if placement is Placement.START:
            return self.mapping
        held = -(-self.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return self.mapping + self.mapped_bytes - held


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Slots of a program, in the order of their buffers, and the length of the whole range."""

    slots: tuple[Slot, ...]
    num_bytes: int


def plan(sizes: Sequence[int], *, unit_bytes: int, guard_bytes: int = GUARD_BYTES) -> Layout:
    """Places buffers of `sizes` bytes; an empty buffer has an address but no mapping."""
    assert guard_bytes % unit_bytes == 0
    slots: list[Slot] = []
    end = guard_bytes
    for num_bytes in sizes:
        mapped = -(-num_bytes // unit_bytes) * unit_bytes
        slots.append(Slot(mapping=end, mapped_bytes=mapped, num_bytes=num_bytes))
        end += mapped + guard_bytes
    return Layout(slots=tuple(slots), num_bytes=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One buffer in this process's address space."""

    address: int
    """Address of its first byte."""
    num_bytes: int
    mapping: int
    mapped_bytes: int

    @property
    def slack(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(address, bytes) of the slack before and behind the buffer."""
        end, last = self.address + self.num_bytes, self.mapping + self.mapped_bytes
        return (self.mapping, self.address - self.mapping), (end, last - end)


class Pool:
    """Physical memory of one card, kept between programs and never mapped while it is kept."""

    def __init__(self, driver: Driver, *, device: int) -> None:
        """Raises Unsupported where the driver lacks virtual memory calls."""
        driver.require_virtual_memory(device)
        self.driver = driver
        self.device = device
        self.unit_bytes = driver.granularity(device)
        self._kept: dict[int, list[int]] = {}
        self._kept_bytes = 0

    def take(self, num_bytes: int) -> int:
        """A handle of so many bytes, a multiple of the unit. Raises DriverError."""
        kept = self._kept.get(num_bytes)
        if kept:
            self._kept_bytes -= num_bytes
            return kept.pop()
        try:
            return self.driver.create_memory(num_bytes, device=self.device)
        except DriverError as error:
            if error.code != OUT_OF_MEMORY or not self._kept_bytes:
                raise
        self.clear()
        return self.driver.create_memory(num_bytes, device=self.device)

    def give_back(self, handle: int, num_bytes: int) -> None:
        """Keeps an unmapped handle, or frees its memory."""
        is_small = num_bytes <= MAX_KEPT_UNITS * self.unit_bytes
        if is_small and self._kept_bytes + num_bytes <= KEPT_BYTES:
            self._kept.setdefault(num_bytes, []).append(handle)
            self._kept_bytes += num_bytes
        else:
            self.driver.release_memory(handle)

    def clear(self) -> None:
        """Frees what is kept."""
        for handles in self._kept.values():
            for handle in handles:
                self.driver.release_memory(handle)
        self._kept.clear()
        self._kept_bytes = 0


class Arena:
    """Mapped buffers of one program."""

    def __init__(self, pool: Pool, sizes: Sequence[int]) -> None:
        """Raises DriverError, with nothing left mapped."""
        self._pool = pool
        self._layout = plan(sizes, unit_bytes=pool.unit_bytes)
        self._handles: list[tuple[Slot, int]] = []
        self._base = pool.driver.reserve_usual(self._layout.num_bytes)
        try:
            for slot in self._layout.slots:
                if slot.mapped_bytes:
                    self._map(slot)
        except BaseException:
            self.close()
            raise

    def _map(self, slot: Slot) -> None:
        pool = self._pool
        handle = pool.take(slot.mapped_bytes)
        address = self._base + slot.mapping
        try:
            pool.driver.map(address, slot.mapped_bytes, handle, device=pool.device)
        except BaseException:
            pool.give_back(handle, slot.mapped_bytes)
            raise
        self._handles.append((slot, handle))

    @property
    def mapped_bytes(self) -> int:
        """Physical memory that is mapped."""
        return sum(slot.mapped_bytes for slot, _ in self._handles)

    def buffer(self, number: int, placement: Placement) -> Buffer:
        """Address of the buffer `number` under a placement."""
        slot = self._layout.slots[number]
        return Buffer(
            address=self._base + slot.offset(placement),
            num_bytes=slot.num_bytes,
            mapping=self._base + slot.mapping,
            mapped_bytes=slot.mapped_bytes,
        )

    def close(self) -> None:
        """Unmaps everything. The card must be idle."""
        driver = self._pool.driver
        for slot, handle in self._handles:
            driver.unmap(self._base + slot.mapping, slot.mapped_bytes)
            self._pool.give_back(handle, slot.mapped_bytes)
        self._handles.clear()
        if self._base:
            driver.free_range(self._base, self._layout.num_bytes)
            self._base = 0


class Sealed:
    """Memory that is mapped only inside `opened`: never while a program's kernels run.

    Holds what a program's buffers are filled from and copied to, which a kernel must not reach:
    the inputs of later calls, the outputs of earlier ones.
    """

    def __init__(self, pool: Pool, *, num_bytes: int, fd: int | None = None) -> None:
        """Creates memory, or imports what `fd` (which stays the caller's) stands for.

        Raises DriverError.
        """
        self._pool = pool
        self.num_bytes = num_bytes
        self._mapped_bytes = -(-max(num_bytes, 1) // pool.unit_bytes) * pool.unit_bytes
        driver = pool.driver
        self._handle = (
            driver.create_memory(self._mapped_bytes, device=pool.device)
            if fd is None
            else driver.import_memory(fd)
        )
        self._base = driver.reserve(self._mapped_bytes)

    @contextmanager
    def opened(self, *, stream: int) -> Generator[int]:
        """Maps it; yields its address; waits for the stream before it unmaps."""
        driver = self._pool.driver
        driver.map(self._base, self._mapped_bytes, self._handle, device=self._pool.device)
        try:
            yield self._base
            driver.synchronize(stream)
        finally:
            driver.unmap(self._base, self._mapped_bytes)

    def close(self) -> None:
        """Frees its memory, unless another process still has it."""
        if self._base:
            self._pool.driver.free_range(self._base, self._mapped_bytes)
            self._pool.driver.release_memory(self._handle)
            self._base = 0
