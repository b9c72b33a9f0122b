# pyright: strict
"""Outputs on a card as the comparison reads them. Called on the judge's own copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.numbers.blocks import blocks, limit_on
from forge.evalpool.judge.numbers.called import dtype_name
from forge.evalpool.judge.wide.compare import matrix_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from forge.evalpool.judge.numbers.blocks import Block
    from forge.evalpool.judge.wide.compare import Wanted

LOOKED_AT = 1 << 22
"""Elements of a block from which on it pays to wait for the card."""


class OnCard:
    """A tensor on a card. Methods as of `Bytes`."""

    xp: Any = torch

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self._tensor = tuple(tensor.shape), dtype_name(tensor), tensor

    def parts(self) -> Iterator[tuple[Block, torch.Tensor]]:
        """Blocks of [rows along the last axis, columns] in order, in float64."""
        if self._tensor.numel():
            found, shape = self.whole(), matrix_of(self.shape)
            for block in blocks(shape, limit_on(found.device)):
                yield block, found.reshape(shape)[block].double()

    def whole(self) -> torch.Tensor:
        """[shape] in its own type; of booleans their bytes."""
        found = self._tensor.contiguous()
        return found.view(torch.uint8) if found.dtype is torch.bool else found

    def numbers(self) -> torch.Tensor:
        """[shape] in float64."""
        return self._tensor.double()

    def zeros(self, shape: tuple[int, ...], *, is_mask: bool = False) -> torch.Tensor:
        """Zeros there."""
        kind = torch.bool if is_mask else torch.float64
        return torch.zeros(shape, dtype=kind, device=self._tensor.device)

    def are_all(self, flags: torch.Tensor) -> bool:
        """True if all are known to be True: a large block is looked at, which saves some passes."""
        return flags.numel() >= LOOKED_AT and bool(flags.all())

    def take(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Elements that are fetched."""
        index = torch.as_tensor(places.reshape(-1), device=self._tensor.device)
        return self._tensor.reshape(-1)[index].double().cpu().numpy().reshape(places.shape)

    def number(self, place: int) -> float:
        """One element."""
        return self.whole().reshape(-1)[place].item()


def agree(pairs: Sequence[tuple[OnCard, Wanted]]) -> list[bool]:
    """For each output and the expected one, True if it agrees. Waits for the card once."""
    flags = [wanted.allows(wanted.differing(got), got) for got, wanted in pairs]
    return [bool(flag) for flag in torch.stack(flags).cpu().numpy()] if flags else []
