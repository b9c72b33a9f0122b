# pyright: strict
"""A draw on a card: tensors in the judge's own memory there, which no executor maps.

Called by `trial.gpu.references`, which asks the oracle, and read by all that judge on a card.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.channel.shm import LayoutError, TensorSpec
from forge.evalpool.judge.numbers.called import dtype_name, is_equal
from forge.evalpool.judge.wide import compare
from forge.evalpool.judge.wide.compare import OnCard, Wanted, agree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.driver.gpu_memory import Block
    from forge.evalpool.judge.trial.draws import Draw, HostDraw
    from forge.evalpool.judge.wide.compare import Mask, Question
    from forge.evalpool.judge.wide.patterns import Operands, Values


@dataclass(slots=True, eq=False)
class CardDraw:
    """A draw, and its tensors. All sets have tensors of the same shapes; but outputs may have other
    shapes, as of `nonzero`, and arguments that are no tensors other values."""

    draw: Draw
    tensors: list[torch.Tensor]
    block: Block
    host: HostDraw | None = None
    """The same in the host's memory, where a small draw is compared: a kernel of the judge's own on
    the card takes longer to launch. A call of torch there gives Python's lock away, and many
    threads wait for it: numpy needs a tenth of the calls."""
    wanted: dict[int, Wanted] = field(init=False)
    """Results, by number; none of a small draw."""

    def __post_init__(self) -> None:
        draw = self.draw
        shapes = [[draw.specs[index] for index in one.inputs] for one in draw.sets]
        if any(one != shapes[0] for one in shapes):
            raise LayoutError("get_inputs gives other shapes from call to call")
        types = [[draw.specs[index].dtype for index in one.outputs] for one in draw.sets]
        if any(one != types[0] for one in types):
            raise LayoutError("outputs differ in their number or types from call to call")
        asked = {} if self.host is not None else draw.asked
        self.wanted = {index: self._wanted(index, *one) for index, one in asked.items()}

    def _wanted(self, index: int, question: Question, exact: int | None = None) -> Wanted:
        other = None if exact is None else self._wanted(exact, question)
        return Wanted(values=OnCard(self.tensors[index]), question=question, exact=other)

    @property
    def num_bytes(self) -> int:
        """Bytes of its memory on the card."""
        return self.block.num_bytes

    def free(self) -> None:
        """Nobody reads it any more."""
        self.tensors.clear()
        self.wanted.clear()
        self.block.close()

    def agree(self, pairs: Sequence[tuple[torch.Tensor, int, Question | None]]) -> list[bool]:
        """For each tensor and the expected one, True if it is right. Waits for the card once."""
        if self.host is not None:
            return [self.mismatch(*one, name="", operands=tuple) is None for one in pairs]
        fit = [tuple(got.shape) == self.draw.specs[index].shape for got, index, _ in pairs]
        asked = [(OnCard(got), self._asked(index, question)) for got, index, question in pairs]
        found = iter(agree([one for one, is_fit in zip(asked, fit, strict=True) if is_fit]))
        return [is_fit and next(found) for is_fit in fit]

    def _asked(self, index: int, question: Question | None) -> Wanted:
        """A result under a question, that of the draw by default."""
        found = self.wanted[index]
        if question is None:
            return found
        return Wanted(values=found.values, question=question, exact=found.exact)

    def mismatch(
        self,
        got: torch.Tensor,
        index: int,
        question: Question | None,
        *,
        name: str,
        operands: Operands,
    ) -> tuple[str, Mask | None] | None:
        """None where a tensor is right under a question, that of the draw by default; else what
        differs in words, and where it does."""
        spec = self.draw.specs[index]
        if tuple(got.shape) != spec.shape:
            return f"{name} shape is {list(got.shape)}, expected {list(spec.shape)}", None
        if self.host is not None:
            data = bytes_of(got)
            return self.host.mismatch(data, index, question, name=name, operands=operands)
        wanted = self._asked(index, question)
        return compare.mismatch(wanted, OnCard(got), name=name, operands=operands)

    def is_unwritten(self, got: torch.Tensor, index: int) -> bool:
        """True if a floating output is all NaN though the reference is not."""
        if self.host is not None:
            return self.host.is_unwritten(bytes_of(got), index)
        return compare.is_unwritten(OnCard(got), OnCard(self.tensors[index]))

    def is_same(self, got: torch.Tensor, index: int) -> bool:
        """True if a tensor equals one of the draw."""
        if self.host is not None:
            return self.host.is_same(bytes_of(got), index)
        return is_equal(got, self.tensors[index])

    def values(self, index: int, *, name: str) -> Values:
        """The elements of a tensor."""
        if self.host is not None:
            return self.host.values(index, name=name)
        return compare.values_of(OnCard(self.tensors[index]), name=name)

    def values_of(self, got: torch.Tensor, index: int) -> Values:
        """The elements of what a call left in place of a tensor."""
        if self.host is not None:
            return self.host.values_of(bytes_of(got), index)
        return compare.values_of(OnCard(got))


def view(memory: torch.Tensor, spec: TensorSpec, start: int) -> torch.Tensor:
    """A tensor of `spec` at byte `start` of a block."""
    kind = getattr(torch, spec.dtype)
    return memory[start : start + spec.num_bytes].view(kind).view(spec.shape)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Type and shape of a tensor."""
    return TensorSpec(dtype_name(tensor), tuple(tensor.shape))


def bytes_of(tensor: torch.Tensor) -> memoryview[int]:
    """Bytes of a tensor in the host's memory."""
    flat = tensor.reshape(-1)
    found: Any = flat.view(torch.uint8).numpy() if len(flat) else b""
    return memoryview(found)
