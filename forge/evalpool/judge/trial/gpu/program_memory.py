# pyright: strict
"""Memory of one candidate's program on a card: inputs, parameters and outputs of several calls.

Called by `program_run.py`. One block, which the executor maps between a program's calls and never
while one runs. A place in it holds what one call needs: the contents of an input set, parameters,
a slot for each output. Expected outputs stay in the judge's own memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import torch

from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.execute.call import BLOCK_ALIGNMENT_BYTES, Call
from forge.evalpool.judge.numbers.blocks import CHUNK
from forge.evalpool.judge.program.format import InvalidProgram, Origin
from forge.evalpool.judge.program.walk import returned_inputs
from forge.evalpool.judge.trial.draws import widened
from forge.evalpool.judge.trial.gpu.card_draw import spec_of, view
from forge.evalpool.judge.trial.results import may_stay

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.trial.gpu.card_draw import CardDraw

BUDGET_BYTES = 1 << 30
"""Memory that the places of one program may take; it has one place at least."""
MAX_PLACES = 16
"""The block of more would take the executor longer to map, before and after each call."""
FEW_SHARE = 1 / 16
POISON = 0xFF
"""Byte of slots that no call has written: NaN in every floating dtype."""


class Mixture(StrEnum):
    """Elements of an input that come from another set."""

    SECOND_HALF = "second half"
    """The second half of each row."""
    FIRST_HALF = "first half"
    """The first half of each row."""
    HALF = "half"
    """A random half of all elements."""
    FEW = "few"
    """A random share of FEW_SHARE."""

    def chosen(self, start: int, num: int, *, length: int, draw: torch.Generator) -> torch.Tensor:
        """[num] True for those from the other set, of the elements from `start` on of a tensor with
        rows of `length`."""
        if self in (Mixture.HALF, Mixture.FEW):
            share = 0.5 if self is Mixture.HALF else FEW_SHARE
            return torch.rand(num, device=draw.device, generator=draw) < share
        place = torch.arange(start, start + num, device=draw.device) % length
        is_behind = place >= (length + 1) // 2
        return is_behind if self is Mixture.SECOND_HALF else is_behind.logical_not()


class SharedBlock(Protocol):
    """Memory that another process can map (`gpu_memory.Block`)."""

    num_bytes: int
    fd: int

    def bytes(self) -> torch.Tensor:
        """[num_bytes] uint8 on the card."""
        ...

    def put(self, offset: int, tensor: torch.Tensor) -> None:
        """Copies a contiguous tensor to a place in the memory."""

    def fill(self, offset: int, num_bytes: int, byte: int) -> None:
        """Writes a byte over a part of the memory."""

    def close(self) -> None:
        """Frees the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A storage that the judge fills, and the tensor of the reference that it is like."""

    storage: int
    offset: int
    """Within a place."""
    input: int = -1
    """Position among the tensor inputs; -1 for a parameter."""
    tensor: int = -1
    """Index of a parameter in the reference; -1 for an input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A parameter that the reference changes."""

    tensor: int
    """Index in the reference."""
    storage: int
    """-1 where the program does not have it."""
    slot: int
    """For its content after a call."""


class ProgramMemory:
    """Places of one program."""

    def __init__(
        self,
        program: Program,
        content: CardDraw,
        *,
        create: Callable[[int], SharedBlock],
        written: Collection[str] = (),
        kinds: Collection[str] = (),
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        """
        Args:
            written: parameters that the reference writes to.
            kinds: types that the program has in float64: contents are made wide as they are put
                into a place, so that they take no memory but there.

        Raises:
            InvalidProgram: the program has other inputs or parameters than the reference.
            DriverError: there is no room.
        """
        self._draw, self._tensors = content.draw, content.tensors
        self.is_small = content.host is not None
        """True if a call's tensors are copied at once."""
        draw, named = content.draw, content.draw.named
        self._written = frozenset(named[name] for name in written if name in named)
        self._statistics = frozenset(
            named[name] for name in written if name in named and may_stay(name, draw.names)
        )
        self._program, self._kinds = program, kinds
        self._end = 0
        self._sources = [
            self._source(number)
            for number, storage in enumerate(program.storages)
            if storage.origin in (Origin.INPUT, Origin.PARAMETER)
        ]
        self._first = self._end
        """Byte of a place from which on its slots are."""
        outputs = [program.tensors[number] for number in program.outputs]
        self._specs = [TensorSpec(one.dtype, one.shape) for one in outputs]
        self._slots = [self._next(spec.num_bytes) for spec in self._specs]
        self._changed = [self._changed_slot(position) for position in draw.sets[0].changed]
        self._states = [self._state_slot(name) for name in draw.changed_parameters]
        self.num_places = min(MAX_PLACES, max(1, budget_bytes // max(self._end, 1)))
        self.block = create(self._end * self.num_places)
        self._bytes: torch.Tensor | None = self.block.bytes()

    def load(self, place: int, number: int) -> None:
        """Puts input set `number` and the parameters into a place, and poison into its slots."""
        start = self._start(place)
        first = self._slots[0] if self._slots else self._end
        if first < self._end:
            self.block.fill(start + first, self._end - first, POISON)
        for source in self._sources:
            content = self._content(source, number)
            spec = widened(spec_of(content), self._kinds)
            if content.numel() and spec == spec_of(content):
                self.block.put(start + source.offset, content)
            elif content.numel():
                view(self._memory(place), spec, source.offset).copy_(content)
        for state in self._states:
            others = self._draw.sets[number].parameters
            content = self._tensors[others.get(state.tensor, state.tensor)]
            if state.storage < 0 and content.numel():
                self.block.put(start + state.slot, content)

    def mix(self, place: int, number: int, *, mixture: Mixture, seed: int) -> None:
        """Puts elements of another set's floating inputs into a loaded place; where the mixture is
        random, the seed decides which."""
        memory = self._memory(place)
        for source in self._sources:
            content = self._content(source, number)
            if source.input < 0 or not content.is_floating_point():
                continue
            draw = torch.Generator(content.device)
            draw.manual_seed(seed + source.input)
            target, news = view(memory, spec_of(content), source.offset).view(-1), content.view(-1)
            length = content.shape[-1] if content.dim() else 1
            for start in range(0, len(target), CHUNK):
                part = target[start : start + CHUNK]
                is_new = mixture.chosen(start, len(part), length=length, draw=draw)
                part.copy_(torch.where(is_new, news[start : start + CHUNK], part))

    @property
    def has_statistics(self) -> bool:
        """True if the program has statistics of a norm that the reference writes to."""
        return any(source.tensor in self._statistics for source in self._sources)

    def call(self, place: int, *, seed: int, is_lasting: bool = False) -> Call:
        """The call that uses a place.

        Args:
            is_lasting: statistics of a norm stay as the call before left them.
        """
        start = self._start(place)
        changing = self._draw.sets[0].changed
        returned = returned_inputs(self._program)
        fills = tuple(
            (source.storage, start + source.offset)
            for source in self._sources
            if not (is_lasting and source.tensor in self._statistics)
        )
        intact = tuple(
            (source.storage, start + source.offset)
            for source in self._sources
            if source.input not in changing
            and source.input not in returned
            and source.tensor not in self._written
        )
        slots = (start + slot for slot in self._slots)
        kept = [*self._changed, *((state.storage, state.slot) for state in self._states)]
        return Call(
            fills=fills,
            takes=tuple(zip(self._program.outputs, slots, strict=True)),
            copies=tuple((s, start + slot) for s, slot in kept if s >= 0),
            intact=intact,
            seed=seed,
        )

    def outputs(self, place: int) -> list[torch.Tensor]:
        """Outputs of the last call in a place, then the inputs that the reference changes, as the
        program left them. Views of the block, or of a copy where they are compared on the host."""
        memory, first = self._left(place), self._draw.sets[0]
        found = [
            view(memory, spec, slot - self._first)
            for spec, slot in zip(self._specs, self._slots, strict=True)
        ]
        for position, (_, slot) in zip(first.changed, self._changed, strict=True):
            spec = self._spec(first.inputs[position])
            found.append(view(memory, spec, slot - self._first))
        return found

    def parameters(self, place: int) -> list[torch.Tensor]:
        """`Draw.changed_parameters` as the last call in a place left them; those that the
        program does not have, as they were. As `outputs`."""
        if not self._states:
            return []
        memory = self._left(place)
        return [
            view(memory, self._spec(one.tensor), one.slot - self._first) for one in self._states
        ]

    def close(self) -> None:
        """Frees the block, and with it what `outputs` and `parameters` gave."""
        self._bytes = None
        self.block.close()

    def _left(self, place: int) -> torch.Tensor:
        """Memory of a place from `_first` on."""
        found = self._memory(place)[self._first :]
        return found.cpu() if self.is_small else found

    def _memory(self, place: int) -> torch.Tensor:
        assert self._bytes is not None
        start = self._start(place)
        return self._bytes[start : start + self._end]

    def _start(self, place: int) -> int:
        assert 0 <= place < self.num_places
        return place * self._end

    def _content(self, source: _Source, number: int) -> torch.Tensor:
        one = self._draw.sets[number]
        own = one.parameters.get(source.tensor, source.tensor)
        return self._tensors[own if source.input < 0 else one.inputs[source.input]]

    def _spec(self, index: int) -> TensorSpec:
        """Type and shape of a tensor of the reference as the program has it."""
        return widened(self._draw.specs[index], self._kinds)

    def _next(self, num_bytes: int) -> int:
        start = self._end
        self._end += -(-max(num_bytes, 1) // BLOCK_ALIGNMENT_BYTES) * BLOCK_ALIGNMENT_BYTES
        return start

    def _source(self, number: int) -> _Source:
        storage, named = self._program.storages[number], self._draw.named
        if storage.origin is Origin.INPUT:
            inputs = self._draw.sets[0].inputs
            if storage.index >= len(inputs):
                raise InvalidProgram(f"storages[{number}]: the problem has {len(inputs)} inputs")
            place, tensor, index = storage.index, -1, inputs[storage.index]
        else:
            if storage.name not in named:
                raise InvalidProgram(f"storages[{number}]: Model has no {storage.name[:80]}")
            place, tensor = -1, named[storage.name]
            index = tensor
        num_bytes = self._spec(index).num_bytes
        if num_bytes != storage.num_bytes:
            raise InvalidProgram(f"storages[{number}]: {storage.num_bytes} bytes for {num_bytes}")
        return _Source(storage=number, offset=self._next(num_bytes), input=place, tensor=tensor)

    def _changed_slot(self, position: int) -> tuple[int, int]:
        """(storage of an input, -1 where the program does not have it; slot for its content)."""
        found = [one.storage for one in self._sources if one.input == position]
        index = self._draw.sets[0].inputs[position]
        slot = self._next(self._spec(index).num_bytes)
        return (found[0] if found else -1), slot

    def _state_slot(self, name: str) -> _State:
        tensor = self._draw.named[name]
        found = [one.storage for one in self._sources if one.tensor == tensor]
        slot = self._next(self._spec(tensor).num_bytes)
        return _State(tensor=tensor, storage=found[0] if found else -1, slot=slot)
