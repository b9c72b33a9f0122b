"""Fills a program's buffers before a call and hands over what it left, through sealed memory.

Used by `child.py` and `timing.py`. The judge writes inputs and parameters into a block that
this process maps only here, never while the program runs; outputs are copied into the same block.
Constants of the program come from a sealed copy in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.execute.call import BLOCK_ALIGNMENT_BYTES
from forge.evalpool.judge.execute.gpu.arena import Sealed
from forge.evalpool.judge.execute.gpu.places import POISON, bytes_at
from forge.evalpool.judge.program.format import Origin, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.execute.call import Call
    from forge.evalpool.judge.execute.gpu.arena import Buffer, Pool
    from forge.evalpool.judge.execute.gpu.run import Loaded


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Source of one loaded program's inputs and constants, and target of its outputs."""

    loaded: Loaded
    pool: Pool
    block: Sealed | None
    """The judge's memory; None where it sends none."""
    _constants: Sealed | None = None
    _offsets: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self._seal_constants()

    @property
    def _stream(self) -> int:
        return self.loaded.stream.cuda_stream

    def prepare(self, call: Call, *, slack: int | None = None, is_checked: bool = False) -> None:
        """Sets every buffer: inputs and parameters from the block, constants, poison elsewhere;
        then runs `init` where the call asks for it. Raises as `Loaded.run`.

        Args:
            slack: byte to put into the slack of the mappings; None leaves it.
            is_checked: waits after each step of `init`.
        """
        places = self.loaded.places
        if slack is not None:
            places.fill_slack(slack, stream=self._stream)
        self._copy_in(call.fills)
        self._copy_constants()
        if call.seed:
            torch.cuda.manual_seed(call.seed)
        if call.is_init and self.loaded.init:
            places.fill(POISON, sections=(Section.INIT,), stream=self._stream)
            self.loaded.run(Section.INIT, is_checked=is_checked)
        places.fill(POISON, sections=(Section.FORWARD,), stream=self._stream)

    def collect(self, call: Call) -> list[int]:
        """Copies the asked tensors into the block; returns storages that are not intact."""
        if self.block is None or not (call.takes or call.intact):
            return []
        places = self.loaded.places
        with self.block.opened(stream=self._stream) as address:
            for number, offset in call.takes:
                tensor = places.tensor(number)
                num_bytes = tensor.numel() * tensor.element_size()
                self._require(offset, num_bytes)
                if num_bytes:
                    slot = bytes_at(address + offset, num_bytes).view(tensor.dtype)
                    slot.view(tensor.shape).copy_(tensor)
            return self._changed(call.intact, address)

    def close(self) -> None:
        for one in (self.block, self._constants):
            if one is not None:
                one.close()
        self.block = self._constants = None

    def _copy_in(self, fills: Sequence[tuple[int, int]]) -> None:
        if self.block is None or not fills:
            return
        places = self.loaded.places
        with self.block.opened(stream=self._stream) as address:
            for storage, offset in fills:
                buffer = places.buffer(storage)
                self._require(offset, buffer.num_bytes)
                self._copy(buffer, address + offset)

    def _copy_constants(self) -> None:
        if self._constants is None:
            return
        places = self.loaded.places
        with self._constants.opened(stream=self._stream) as address:
            for storage, offset in self._offsets.items():
                buffer = places.buffer(storage)
                self._copy(buffer, address + offset)

    def _copy(self, buffer: Buffer, source: int) -> None:
        driver = self.pool.driver
        driver.copy(buffer.address, source, buffer.num_bytes, stream=self._stream)

    def _changed(self, intact: Sequence[tuple[int, int]], address: int) -> list[int]:
        flags: list[torch.Tensor] = []
        numbers: list[int] = []
        for storage, offset in intact:
            buffer = self.loaded.places.buffer(storage)
            self._require(offset, buffer.num_bytes)
            if buffer.num_bytes:
                own = bytes_at(buffer.address, buffer.num_bytes)
                other = bytes_at(address + offset, buffer.num_bytes)
                if buffer.num_bytes % 8 == 0:  # both addresses are multiples of 16
                    own, other = own.view(torch.int64), other.view(torch.int64)
                numbers.append(storage)
                flags.append((own != other).any())
        if not flags:
            return []
        are_changed = torch.stack(flags).tolist()
        return [number for number, changed in zip(numbers, are_changed, strict=True) if changed]

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
        self._constants = Sealed(self.pool, num_bytes=end)
        with self._constants.opened(stream=self._stream) as address:
            for number, offset in self._offsets.items():
                data = program.constants[program.storages[number].index]
                self.pool.driver.upload(address + offset, data)
