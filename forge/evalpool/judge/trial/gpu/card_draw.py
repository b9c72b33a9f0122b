# pyright: strict
"""A draw on a card: tensors in the judge's own memory there, which no executor maps.

Called by `trial.gpu.references`, which asks the oracle, and read by all that judge on a card.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.channel.shm import LayoutError, TensorSpec
from forge.evalpool.judge.numbers.called import dtype_name, is_equal
from forge.evalpool.judge.wide import card
from forge.evalpool.judge.wide.card import CardWanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.channel.gpu_memory import Block
    from forge.evalpool.judge.trial.draws.draw import Draw
    from forge.evalpool.judge.wide.compare import Mask, Question
    from forge.evalpool.judge.wide.look import Operands, Values


@dataclass(slots=True)
class CardDraw:
    """A draw, and its tensors. All sets have tensors of the same shapes; but outputs may have other
    shapes, as of `nonzero`, and arguments that are no tensors other values."""

    draw: Draw
    tensors: list[torch.Tensor]
    block: Block
    wanted: dict[int, CardWanted] = field(init=False)
    """Results, by number."""
    is_on_host: bool = False
    """True if expected outputs are in the host's memory, where a small draw is compared: a kernel
    of the judge's own on the card takes longer to launch."""

    def __post_init__(self) -> None:
        draw = self.draw
        shapes = [[draw.specs[index] for index in one.inputs] for one in draw.sets]
        if any(one != shapes[0] for one in shapes):
            raise LayoutError("get_inputs gives other shapes from call to call")
        types = [[draw.specs[index].dtype for index in one.outputs] for one in draw.sets]
        if any(one != types[0] for one in types):
            raise LayoutError("outputs differ in their number or types from call to call")
        self.wanted = {index: self._wanted(index, *asked) for index, asked in draw.asked.items()}

    def _wanted(self, index: int, question: Question, exact: int | None = None) -> CardWanted:
        other = None if exact is None else self._wanted(exact, question)
        return CardWanted(tensor=self.tensors[index], question=question, exact=other)

    def put_inputs(self, put: Callable[[int], torch.Tensor]) -> None:
        """Takes inputs and parameters from the card; expected outputs stay where they are.

        Args:
            put: the tensor of an index there.
        """
        self.is_on_host = True
        inputs = (index for one in self.draw.sets for index in one.inputs)
        for index in {*inputs, *self.draw.named.values()}:
            self.tensors[index] = put(index)

    @property
    def num_bytes(self) -> int:
        """Bytes of its memory on the card."""
        return self.block.num_bytes

    def free(self) -> None:
        """Nobody reads it any more."""
        self.tensors.clear()
        self.wanted.clear()
        self.block.close()

    def asked(self, index: int, question: Question | None) -> CardWanted:
        """A result under a question, that of the draw by default."""
        found = self.wanted[index]
        if question is None:
            return found
        return CardWanted(tensor=found.tensor, question=question, exact=found.exact)

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
        return card.mismatch(got, self.asked(index, question), name=name, operands=operands)

    def is_unwritten(self, got: torch.Tensor, index: int) -> bool:
        """True if a floating output is all NaN though the reference is not."""
        return card.is_unwritten(got, self.wanted[index].tensor)

    def is_same(self, got: torch.Tensor, index: int) -> bool:
        """True if a tensor equals one of the draw."""
        return is_equal(got, self.wanted[index].tensor)

    def values(self, index: int, *, name: str) -> Values:
        """The elements of a tensor."""
        return card.values_of(self.tensors[index], name=name)


def view(memory: torch.Tensor, spec: TensorSpec, start: int) -> torch.Tensor:
    """A tensor of `spec` at byte `start` of a block."""
    kind = getattr(torch, spec.dtype)
    return memory[start : start + spec.num_bytes].view(kind).view(spec.shape)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Type and shape of a tensor."""
    return TensorSpec(dtype_name(tensor), tuple(tensor.shape))
