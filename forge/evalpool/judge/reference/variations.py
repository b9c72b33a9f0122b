"""Changes of one tensor, and the range of a result over several draws. Used by `examine.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.numbers.blocks import blocks_of
from forge.evalpool.judge.numbers.finite import widened
from forge.evalpool.judge.numbers.inputs.variants import Freedom, vary_

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forge.evalpool.judge.numbers.blocks import Block
    from forge.evalpool.judge.numbers.gpu_compare import Allowed


def varied(value: torch.Tensor, name: str) -> torch.Tensor:
    """A copy in one of the judge's distributions; integers and booleans stay."""
    if value.is_floating_point():
        return vary_(value.clone(memory_format=torch.contiguous_format), name, Freedom())
    return value


def disturbed(value: torch.Tensor) -> torch.Tensor:
    """Other values of the same kind: noise of its own size; for integers the same ones in another
    order, since they may be indices."""
    if value.dtype == torch.bool:
        return value ^ (torch.rand(value.shape, device=value.device) > 0.5)
    if not value.is_floating_point():
        order = torch.randperm(value.numel(), device=value.device)
        return value.flatten()[order].view(value.shape)
    other = value.clone()
    shake(other, by=1.0)
    return other


def shake(value: torch.Tensor, *, by: float) -> None:
    """Adds noise to a floating tensor in place, `by` times its rms + 0.1."""
    if value.is_floating_point() and value.numel():
        scale = by * (value.float().square().mean().sqrt() + 0.1)
        value.add_(torch.randn_like(value) * scale)


class Range:
    """Smallest and largest value of each element of one output over several draws. Takes memory
    for three tensors of the output's shape, whatever the number of draws."""

    def __init__(self, output: torch.Tensor, *, allowed: Allowed) -> None:
        self._low, self._high = widened(output).clone(), widened(output).clone()
        self._least = _magnitude(output)
        """Smallest magnitude: the tolerance grows with it."""
        self._allowed = [allowed]

    def add(self, output: torch.Tensor, *, allowed: Allowed) -> None:
        """Takes one more draw into account."""
        torch.minimum(self._low, widened(output), out=self._low)
        torch.maximum(self._high, widened(output), out=self._high)
        torch.minimum(self._least, _magnitude(output), out=self._least)
        self._allowed.append(allowed)

    def is_one_answer(self) -> bool:
        """True if the middle of each element's range is within tolerance of all draws."""
        return all(
            bool((self._radius(block) <= self._tolerance(block)).all()) for block in self._blocks()
        )

    def square_sum(self) -> float:
        """Sum of the squares of half of each element's range, as far as they are finite."""
        return sum(_square_sum(self._radius(block)) for block in self._blocks())

    def _blocks(self) -> Iterator[Block]:
        return blocks_of(self._low)

    def _radius(self, block: Block) -> torch.Tensor:
        return (self._high[block].double() - self._low[block].double()).div_(2)

    def _tolerance(self, block: Block) -> torch.Tensor:
        least = self._least[block].double()
        if not self._low.is_floating_point():
            return torch.zeros_like(least)
        tolerance = self._allowed[0].at(block, least)
        for allowed in self._allowed[1:]:
            torch.minimum(tolerance, allowed.at(block, least), out=tolerance)
        return tolerance


def relative(ranges: Sequence[Range], outputs: Sequence[torch.Tensor]) -> float:
    """The rms of half of all `ranges` over that of all `outputs`; 0 if these are 0."""
    whole = sum(_square_sum(one[block].double()) for one in outputs for block in blocks_of(one))
    return (sum(one.square_sum() for one in ranges) / whole) ** 0.5 if whole else 0.0


def _square_sum(values: torch.Tensor) -> float:
    return float(values.nan_to_num(0.0, 0.0, 0.0).square_().sum())


def _magnitude(output: torch.Tensor) -> torch.Tensor:
    """[shape] |output|; 0 where it is not finite."""
    if not output.is_floating_point():
        return torch.zeros_like(output)
    return widened(output).abs().nan_to_num_(0.0, 0.0, 0.0)
