"""A program's memory in the executor: buffers alone between unmapped ranges, and its tensors.

An access past a buffer's mapping is a fault of the card, not luck. Memory comes in units of 2 MiB,
so a mapping has slack:
`Placement.END` puts the buffer at its end (an access behind it faults), `Placement.START` at its
start (an access before it faults). The slack holds a pattern, which is checked. Physical memory is
filled before anything is mapped for a program.

Most storages have a buffer of the arena, at one address for the program's life. A storage that an
operation of `forward` creates may float: it is then the operation's own result, as in torch, so
that timing pays for no copy. A floating storage ends with its last use.
"""

from __future__ import annotations

import math
import random
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.driver.driver import OUT_OF_MEMORY, DriverError
from forge.evalpool.judge.program.format import Op, Origin, Program, Section
from forge.evalpool.judge.program.walk import tensors_in, used_tensors

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from forge.evalpool.judge.driver.driver import Driver
    from forge.evalpool.judge.execute.gpu.card import Card

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
class Buffer:
    """One buffer in this process's address space."""

    num_bytes: int
    mapping: int
    """Address of its mapping; the guards lie before and behind it."""
    mapped_bytes: int
    placement: Placement

    @property
    def address(self) -> int:
        """Address of its first byte."""
        if self.placement is Placement.START:
            return self.mapping
        held = -(-self.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return self.mapping + self.mapped_bytes - held

    @property
    def slack(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(address, bytes) of the slack before and behind the buffer."""
        end, last = self.address + self.num_bytes, self.mapping + self.mapped_bytes
        return (self.mapping, self.address - self.mapping), (end, last - end)


def plan(
    sizes: Sequence[int], *, unit_bytes: int, guard_bytes: int = GUARD_BYTES
) -> tuple[list[tuple[int, int]], int]:
    """Offset and bytes of the mapping of each buffer of `sizes` bytes, in a range of so many bytes;
    an empty buffer has an address but no mapping."""
    assert guard_bytes % unit_bytes == 0
    found: list[tuple[int, int]] = []
    end = guard_bytes
    for num_bytes in sizes:
        mapped = -(-num_bytes // unit_bytes) * unit_bytes
        found.append((end, mapped))
        end += mapped + guard_bytes
    return found, end


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
        for handles in self._kept.values():
            for handle in handles:
                self.driver.release_memory(handle)
        self._kept.clear()
        self._kept_bytes = 0


class Arena:
    """Mapped buffers of one program."""

    def __init__(self, pool: Pool, sizes: Sequence[int]) -> None:
        """Raises DriverError, with nothing left mapped."""
        self._pool, self._sizes = pool, sizes
        self._mappings, self._num_bytes = plan(sizes, unit_bytes=pool.unit_bytes)
        self._handles: list[tuple[int, int, int]] = []
        """Offset and bytes of each mapping, with the memory there."""
        self._base = pool.driver.reserve_usual(self._num_bytes)
        try:
            for offset, num_bytes in self._mappings:
                if num_bytes:
                    self._map(offset, num_bytes)
        except BaseException:
            self.close()
            raise

    def _map(self, offset: int, num_bytes: int) -> None:
        pool = self._pool
        handle = pool.take(num_bytes)
        try:
            pool.driver.map(self._base + offset, num_bytes, handle, device=pool.device)
        except BaseException:
            pool.give_back(handle, num_bytes)
            raise
        self._handles.append((offset, num_bytes, handle))

    def buffer(self, number: int, placement: Placement) -> Buffer:
        offset, mapped_bytes = self._mappings[number]
        return Buffer(
            num_bytes=self._sizes[number],
            mapping=self._base + offset,
            mapped_bytes=mapped_bytes,
            placement=placement,
        )

    def close(self) -> None:
        """Unmaps everything. The card must be idle."""
        driver = self._pool.driver
        for offset, num_bytes, handle in self._handles:
            driver.unmap(self._base + offset, num_bytes)
            self._pool.give_back(handle, num_bytes)
        self._handles.clear()
        if self._base:
            driver.free_range(self._base, self._num_bytes)
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


# --- tensors


POISON = 0xFF
"""Byte in unwritten memory of a call without a seed: NaN in every floating type, -1 in integers."""


class BadResult(Exception):
    """An operation's result is not the tensor that the program says it is."""


class Places:
    """Storages and tensors of one loaded program."""

    def __init__(
        self, program: Program, residency: Residency, *, card: Card, scratch: Sequence[int] = ()
    ) -> None:
        """Maps a buffer for each storage and for each scratch buffer (in bytes). Raises DriverError
        where there is no room."""
        self._program = program
        self._residency = residency
        self._card, self._driver = card, card.driver
        sizes = [storage.num_bytes for storage in program.storages]
        self._num_storages, self._num_buffers = len(sizes), len(sizes) + len(scratch)
        self.arena = Arena(card.pool, [*sizes, *scratch])
        self.placement = Placement.START
        self.is_direct = False
        self._fixed: dict[tuple[Placement, int], torch.Tensor] = {}
        self._bound: dict[int, tuple[torch.Tensor, int]] = {}
        """Floating storages: the result and its storage offset in bytes."""

    def place(self, placement: Placement, *, is_direct: bool) -> None:
        """Sets where buffers lie in their mappings, and if floating storages float."""
        self.placement = placement
        self.is_direct = is_direct
        self._bound.clear()

    def buffer(self, storage: int) -> Buffer:
        return self.arena.buffer(storage, self.placement)

    def scratch_address(self, number: int) -> int:
        return self.buffer(self._num_storages + number).address

    def is_floating(self, storage: int) -> bool:
        """True if a storage has no place of its own: it is the result of an operation."""
        return self.is_direct and storage in self._residency.floating

    def address(self, storage: int) -> int:
        """Address of a storage's first byte. Raises BadResult where it is not written yet."""
        if not self.is_floating(storage):
            return self.buffer(storage).address
        result, start = self._binding(storage)
        return result.untyped_storage().data_ptr() + start

    def tensor(self, number: int) -> torch.Tensor:
        storage = self._program.tensors[number].storage
        if self.is_floating(storage):
            return self._view_of_result(number)
        key = (self.placement, number)
        if key not in self._fixed:
            self._fixed[key] = self._view_of_buffer(number)
        return self._fixed[key]

    def bind(self, number: int, result: torch.Tensor) -> None:
        """Makes an operation's result the program's tensor `number`: by name where its storage
        floats, else by a copy, unless it lies there already. Raises BadResult."""
        tensor = self._program.tensors[number]
        claimed = (tensor.shape, tensor.dtype)
        found = (tuple(result.shape), str(result.dtype).removeprefix("torch."))
        if found != claimed or result.device.type != self._card.device.type:
            raise BadResult(f"a result is {found} on {result.device}, not {claimed}")
        if not self.is_floating(tensor.storage) or tensor.storage in self._bound:
            target = self.tensor(number)
            is_there = target.data_ptr() == result.data_ptr()
            if not (is_there and _has_strides(result, target.stride())):
                target.copy_(result)
        else:
            if not _has_strides(result, tensor.strides):
                strided = torch.empty_strided(
                    tensor.shape, tensor.strides, dtype=result.dtype, device=self._card.device
                )
                result = strided.copy_(result)
            start = (int(result.storage_offset()) - tensor.offset) * result.element_size()
            has_bytes = result.untyped_storage().nbytes() - start
            if start < 0 or has_bytes < self._program.storages[tensor.storage].num_bytes:
                words = f"storage {tensor.storage} is larger than the result that it is made of"
                raise BadResult(words)
            self._bound[tensor.storage] = (result, start)

    def forget(self, storage: int) -> None:
        """Ends a floating storage; its memory is free for later results."""
        self._bound.pop(storage, None)

    def bindings(self) -> dict[int, tuple[torch.Tensor, int]]:
        return dict(self._bound)

    def rebind(self, bindings: dict[int, tuple[torch.Tensor, int]]) -> None:
        self._bound = dict(bindings)

    def poison(self, section: Section, *, seed: int = 0) -> None:
        """Fills the allocations of a section that have a buffer, and all scratch buffers: with
        random bytes, or with `POISON` where there is no seed. Which of the two a program finds
        tells it nothing, since checked and timed calls have both."""
        numbers = [*self._allocations(section), *range(self._num_storages, self._num_buffers)]
        draw = random.Random(seed)
        for number in numbers:
            buffer = self.buffer(number)
            if seed:
                self._card.scatter(buffer.address, buffer.num_bytes, place=draw.random())
            else:
                self._fill(buffer.address, buffer.num_bytes, POISON)

    def fill_slack(self, value: int) -> None:
        for number in range(self._num_buffers):
            for address, num_bytes in self.buffer(number).slack:
                self._fill(address, num_bytes, value)

    def _fill(self, address: int, num_bytes: int, value: int) -> None:
        self._driver.fill(address, num_bytes, value, stream=self._card.stream)

    def slack_flags(self, value: int) -> tuple[list[int], torch.Tensor | None]:
        """Storages, one for each range of slack, and for each range a flag, still on the card:
        true if it has lost its pattern."""
        found: list[int] = []
        flags: list[torch.Tensor] = []
        for number in range(self._num_storages):
            for address, num_bytes in self.buffer(number).slack:
                if num_bytes:
                    found.append(number)
                    flags.append((self._card.bytes_at(address, num_bytes) != value).any())
        return found, torch.stack(flags) if flags else None

    def written_slack(self, found: tuple[list[int], torch.Tensor | None]) -> tuple[int, ...]:
        """Storages whose slack has lost its pattern, from `slack_flags`. Waits for the card."""
        numbers, flags = found
        if flags is None:
            return ()
        pairs = zip(numbers, flags.tolist(), strict=True)
        return tuple(sorted({number for number, is_written in pairs if is_written}))

    def _allocations(self, section: Section) -> Iterator[int]:
        for number, storage in enumerate(self._program.storages):
            is_wanted = storage.origin is Origin.ALLOCATION and storage.section is section
            if is_wanted and not self.is_floating(number):
                yield number

    def close(self) -> None:
        """Unmaps everything. The card must be idle."""
        self._fixed.clear()
        self._bound.clear()
        self.arena.close()

    def _binding(self, storage: int) -> tuple[torch.Tensor, int]:
        if storage not in self._bound:
            raise BadResult(f"storage {storage} is used before an operation has made it")
        return self._bound[storage]

    def _view_of_result(self, number: int) -> torch.Tensor:
        tensor = self._program.tensors[number]
        result, start = self._binding(tensor.storage)
        kind: torch.dtype = getattr(torch, tensor.dtype)
        if kind is not result.dtype:
            flat = torch.empty(0, dtype=torch.uint8, device=self._card.device)
            num_bytes = self._program.storages[tensor.storage].num_bytes
            flat.set_(result.untyped_storage(), start, (num_bytes,), (1,))
            return _typed(flat, kind).as_strided(tensor.shape, tensor.strides, tensor.offset)
        offset = start // result.element_size() + tensor.offset
        return result.as_strided(tensor.shape, tensor.strides, offset)

    def _view_of_buffer(self, number: int) -> torch.Tensor:
        tensor = self._program.tensors[number]
        kind: torch.dtype = getattr(torch, tensor.dtype)
        if not math.prod(tensor.shape):
            return torch.empty_strided(
                tensor.shape, tensor.strides, dtype=kind, device=self._card.device
            )
        buffer = self.buffer(tensor.storage)
        flat = _typed(self._card.bytes_at(buffer.address, buffer.num_bytes), kind)
        return flat.as_strided(tensor.shape, tensor.strides, tensor.offset)


def _typed(flat: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    whole = flat.numel() // kind.itemsize * kind.itemsize
    return flat[:whole].view(kind)


def _has_strides(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """True if the strides of all dimensions that have more than one element are these."""
    pairs = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return tensor.numel() == 0 or all(own == other for n, own, other in pairs if n != 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """Storages by where they may lie."""

    floating: frozenset[int]
    """Storages that may be an operation's own result."""
    ends: Mapping[int, tuple[int, ...]]
    """Floating storages, but outputs', by the position in `forward` of their last use."""


def find_residency(program: Program) -> Residency:
    floating = _born_of_operations(program)
    outputs = {program.tensors[number].storage for number in program.outputs}
    last_use: dict[int, int] = {}
    for position, node in enumerate(program.forward):
        for tensor in used_tensors(node):
            storage = program.tensors[tensor].storage
            if storage in floating and storage not in outputs:
                last_use[storage] = position
    ends: dict[int, tuple[int, ...]] = {}
    for storage, position in last_use.items():
        ends[position] = (*ends.get(position, ()), storage)
    return Residency(floating=frozenset(floating), ends=ends)


def _born_of_operations(program: Program) -> set[int]:
    """Allocations of `forward` whose first use is as a result of an operation that does not take
    them as an argument. Those of a choice are not among them: its alternatives share them."""
    seen, found = set[int](), set[int]()
    for node in program.nodes:
        if isinstance(node, Op):
            literals = (*node.arguments, *node.keywords.values())
            given = (tensor for literal in literals for tensor in tensors_in(literal))
            seen |= {program.tensors[tensor].storage for tensor in given}
            results = {program.tensors[tensor].storage for tensor in node.results}
            found |= results - seen
        seen |= {program.tensors[tensor].storage for tensor in used_tensors(node)}
    storages = ((number, program.storages[number]) for number in found)
    return {
        number
        for number, one in storages
        if one.origin is Origin.ALLOCATION and one.section is Section.FORWARD
    }
