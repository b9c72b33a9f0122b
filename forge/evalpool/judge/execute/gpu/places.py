"""A program's tensors in the executor: over buffers of the arena, or over results of operations.

Used by `run.py`. Knows addresses and views; runs nothing. Most storages have a buffer of the arena,
at one address for the program's life. A storage that an operation of `forward` creates may float:
it is then the operation's own result, as in torch, so that timing pays for no copy. A floating
storage ends with its last use.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.execute.gpu.arena import Arena, Buffer, Placement
from forge.evalpool.judge.program.format import Op, Origin, Program, Section
from forge.evalpool.judge.program.walk import tensors_in, used_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from forge.evalpool.judge.execute.gpu.card import Card

POISON = 0xFF
"""Byte in outputs and temporaries before a call without a seed: NaN in every floating type, -1 in
integers."""


class BadResult(Exception):
    """An operation's result is not the tensor that the program says it is."""


class Places:
    """Storages and tensors of one loaded program."""

    def __init__(
        self,
        program: Program,
        residency: Residency,
        *,
        card: Card,
        scratch: Sequence[int] = (),
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
        """The buffer of a storage at the placement of this call."""
        return self.arena.buffer(storage, self.placement)

    def scratch_address(self, number: int) -> int:
        """Address of a scratch buffer."""
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
        """A tensor of the program."""
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
            self._deliver(number, result)
        else:
            if not _has_strides(result, tensor.strides):
                strided = torch.empty_strided(
                    tensor.shape, tensor.strides, dtype=result.dtype, device=self._card.device
                )
                result = strided.copy_(result)
            start = (int(result.storage_offset()) - tensor.offset) * result.element_size()
            self._bound[tensor.storage] = (result, start)
            self._require_inside(tensor.storage)

    def forget(self, storage: int) -> None:
        """Ends a floating storage; its memory is free for later results."""
        self._bound.pop(storage, None)

    def bindings(self) -> dict[int, tuple[torch.Tensor, int]]:
        """Results that floating storages stand for at the moment."""
        return dict(self._bound)

    def rebind(self, bindings: dict[int, tuple[torch.Tensor, int]]) -> None:
        """Sets the results that floating storages stand for."""
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
        """Puts the pattern into the slack of every mapping."""
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

    def _deliver(self, number: int, result: torch.Tensor) -> None:
        target = self.tensor(number)
        if target.data_ptr() != result.data_ptr() or not _has_strides(result, target.stride()):
            target.copy_(result)

    def _binding(self, storage: int) -> tuple[torch.Tensor, int]:
        if storage not in self._bound:
            raise BadResult(f"storage {storage} is used before an operation has made it")
        return self._bound[storage]

    def _require_inside(self, storage: int) -> None:
        result, start = self._bound[storage]
        has_bytes = result.untyped_storage().nbytes() - start
        if start < 0 or has_bytes < self._program.storages[storage].num_bytes:
            del self._bound[storage]
            raise BadResult(f"storage {storage} is larger than the result that it is made of")

    def _view_of_result(self, number: int) -> torch.Tensor:
        tensor = self._program.tensors[number]
        result, start = self._binding(tensor.storage)
        kind: torch.dtype = getattr(torch, tensor.dtype)
        if kind is not result.dtype:
            flat = torch.empty(0, dtype=torch.uint8, device=self._card.device)
            flat.set_(result.untyped_storage(), start, (self._num_bytes(tensor.storage),), (1,))
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
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
        if tensor.offset < 0 or tensor.offset + last >= flat.numel():
            raise BadResult(f"tensor {number} is outside of its storage")
        return flat.as_strided(tensor.shape, tensor.strides, tensor.offset)

    def _num_bytes(self, storage: int) -> int:
        return self._program.storages[storage].num_bytes


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
    """Floating storages by the position in `forward` of the last node that uses them; without
    those of outputs."""


def find_residency(program: Program) -> Residency:
    """Residency of a program's storages."""
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
    seen: set[int] = set()
    found: set[int] = set()
    for node in program.nodes:
        if isinstance(node, Op):
            arguments = _arguments(node)
            seen |= {program.tensors[tensor].storage for tensor in arguments}
            results = {program.tensors[tensor].storage for tensor in node.results}
            found |= results - seen
        seen |= {program.tensors[tensor].storage for tensor in used_tensors(node)}
    return {number for number in found if _may_float(program, number)}


def _arguments(op: Op) -> Iterator[int]:
    for literal in (*op.arguments, *op.keywords.values()):
        yield from tensors_in(literal)


def _may_float(program: Program, number: int) -> bool:
    storage = program.storages[number]
    return storage.origin is Origin.ALLOCATION and storage.section is Section.FORWARD
