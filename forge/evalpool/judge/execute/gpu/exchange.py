"""Fills a program's buffers before a call and hands over what it left, through sealed memory.

Used by `child.py` and `timing.py`. The judge writes inputs and parameters into a block that
this process maps only here, never while the program runs; outputs are copied into the same block.
Constants of the program come from a sealed copy in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from forge.evalpool.judge.execute.call import BLOCK_ALIGNMENT_BYTES, Call
from forge.evalpool.judge.execute.gpu.card import Card
from forge.evalpool.judge.execute.gpu.places import Sealed
from forge.evalpool.judge.execute.gpu.run import Loaded
from forge.evalpool.judge.program.format import Origin, Section

Source: TypeAlias = "tuple[int | None, int | None]"
"""Addresses of block and constants while they are mapped; None where there is none."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Source of one loaded program's inputs and constants, and target of its outputs."""

    loaded: Loaded
    block: Sealed | None
    """The judge's memory; None where it sends none."""
    _constants: Sealed | None = None
    _offsets: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self._seal_constants()

    @property
    def _card(self) -> Card:
        return self.loaded.card

    def prepare(self, call: Call, *, is_checked: bool = False) -> None:
        """Sets everything that a program can reach: inputs and parameters from the block,
        constants, poison elsewhere; then runs `init`, and waits after each step of it if it
        `is_checked`. A call on what the one before left gets inputs, parameters and constants
        alone. Raises as `Loaded.run`."""
        with self._opened() as source:
            self._copy_in(call, source)
        self._begin(call, is_checked=is_checked)

    def collect(self, call: Call) -> torch.Tensor | None:
        """Copies the asked tensors into the block. Returns flags for `changed`, on the card."""
        with self._opened() as source:
            return self._copy_out(call, source)

    def turn(self, done: Call, following: Call | None) -> torch.Tensor | None:
        """`collect` of a call and `prepare` of the one that follows, with one mapping of the
        block. Returns the flags for `changed`, still on the card."""
        with self._opened() as source:
            flags = self._copy_out(done, source)
            if following is not None:
                self._copy_in(following, source)
        if following is not None:
            self._begin(following)
        return flags

    def changed(self, call: Call, flags: torch.Tensor | None) -> tuple[int, ...]:
        """Storages of a call that are not intact. Waits for the card."""
        if flags is None:
            return ()
        pairs = zip(self._watched(call), flags.tolist(), strict=True)
        return tuple(storage for (storage, _), is_changed in pairs if is_changed)

    def close(self) -> None:
        for one in (self.block, self._constants):
            if one is not None:
                one.close()
        self.block = self._constants = None

    @contextmanager
    def _opened(self) -> Iterator[Source]:
        """Maps what this program is filled from; the card is idle before it is unmapped."""
        with ExitStack() as mapped:
            block, constants = (
                None if one is None else mapped.enter_context(one.opened(stream=self._card.stream))
                for one in (self.block, self._constants)
            )
            yield block, constants

    def _copy_in(self, call: Call, source: Source) -> None:
        block, constants = source
        if constants is not None:
            for storage, offset in self._offsets.items():
                self._copy(storage, constants + offset)
        if block is not None:
            for storage, offset in call.fills:
                self._require(offset, self.loaded.program.storages[storage].num_bytes)
                self._copy(storage, block + offset)

    def _copy(self, storage: int, source: int) -> None:
        buffer = self.loaded.places.buffer(storage)
        self._card.driver.copy(buffer.address, source, buffer.num_bytes, stream=self._card.stream)

    def _begin(self, call: Call, *, is_checked: bool = False) -> None:
        """Leaves nothing of earlier calls in reach: `init` runs anew, all else is poisoned."""
        places = self.loaded.places
        self._card.seed(call.seed)
        if call.is_kept:
            return
        places.fill_slack(call.slack)
        places.poison(Section.INIT, seed=call.poison)
        self.loaded.run(Section.INIT, is_checked=is_checked)
        places.poison(Section.FORWARD, seed=call.poison)

    def _copy_out(self, call: Call, source: Source) -> torch.Tensor | None:
        """Copies outputs; returns a flag for each storage that is watched, true if it changed."""
        block, card = source[0], self._card
        if block is None:
            return None
        for number, offset in call.takes:
            tensor = self.loaded.places.tensor(number)
            self._require(offset, tensor.nbytes)
            if tensor.nbytes and tensor.is_contiguous():
                place = block + offset, tensor.data_ptr(), tensor.nbytes
                card.driver.copy(*place, stream=card.stream)
            elif tensor.nbytes:
                slot = card.bytes_at(block + offset, tensor.nbytes).view(tensor.dtype)
                slot.view(tensor.shape).copy_(tensor)
        for storage, offset in call.copies:
            buffer = self.loaded.places.buffer(storage)
            self._require(offset, buffer.num_bytes)
            place = block + offset, buffer.address, buffer.num_bytes
            card.driver.copy(*place, stream=card.stream)
        flags = [self._differs(storage, block + at) for storage, at in self._watched(call)]
        return torch.stack(flags) if flags else None

    def _watched(self, call: Call) -> list[tuple[int, int]]:
        storages = self.loaded.program.storages
        watched = [(one, offset) for one, offset in call.intact if storages[one].num_bytes]
        for storage, offset in watched:
            self._require(offset, storages[storage].num_bytes)
        return watched

    def _differs(self, storage: int, address: int) -> torch.Tensor:
        buffer = self.loaded.places.buffer(storage)
        own = self._card.bytes_at(buffer.address, buffer.num_bytes)
        other = self._card.bytes_at(address, buffer.num_bytes)
        if buffer.num_bytes % 8 == 0:  # both addresses are multiples of 16
            own, other = own.view(torch.int64), other.view(torch.int64)
        return (own != other).any()

    def _require(self, offset: int, num_bytes: int) -> None:
        """Raises ValueError for what does not lie in the block."""
        assert self.block is not None
        if (
            offset < 0
            or offset % BLOCK_ALIGNMENT_BYTES
            or offset + num_bytes > self.block.num_bytes
        ):
            raise ValueError(f"{num_bytes} bytes at {offset} of a block of {self.block.num_bytes}")

    def _seal_constants(self) -> None:
        program = self.loaded.program
        end = 0
        for number, storage in enumerate(program.storages):
            if storage.origin is Origin.CONSTANT:
                self._offsets[number] = end
                end += -(-storage.num_bytes // BLOCK_ALIGNMENT_BYTES) * BLOCK_ALIGNMENT_BYTES
        if not end:
            return
        self._constants = Sealed(self._card.pool, num_bytes=end)
        with self._constants.opened(stream=self._card.stream) as address:
            for number, offset in self._offsets.items():
                data = program.constants[program.storages[number].index]
                self._card.driver.upload(address + offset, data)
