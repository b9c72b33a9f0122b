"""Scales of a tensor by row, column and any other axis, in blocks of bounded memory.

A slab is all elements that share their index on one axis; where the last axis is long, also a line
along it. An element belongs to one slab of each family, and the smallest of its slabs' values
counts: columns of unlike scale are judged each by its own. Used by errors/own_error.py and
gpu_compare.py; compare.py does the same in numpy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.linalg import vector_norm

from forge.evalpool.judge.numbers.blocks import THREADS, blocks, blocks_of, limit_on
from forge.evalpool.judge.numbers.tolerance import SENTINEL_RATIO, families, is_sentinel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.judge.numbers.blocks import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Slabs:
    """A number for each slab of a tensor."""

    shape: tuple[int, ...]
    values: list[torch.Tensor]
    """Float64, by family: [sizes of its axes]."""
    whole: float = 0.0
    """Root mean square of the whole tensor, where the values are such."""

    def least(self) -> float:
        """The smallest value of all; waits for the card."""
        return min(float(value.min()) for value in self.values)

    def at(
        self, block: Block, *, factor: float = 1.0, kind: torch.dtype = torch.float64
    ) -> torch.Tensor:
        """The smallest value among an element's slabs times `factor`, in a type; broadcastable to
        the block."""
        least: torch.Tensor | None = None
        for axes, value in zip(families(self.shape), self.values, strict=True):
            part = (value[tuple(block[axis] for axis in axes)] * factor).to(kind)
            sizes = [part.shape[axes.index(a)] if a in axes else 1 for a in range(len(self.shape))]
            wide = part.reshape(sizes)
            least = wide if least is None else torch.minimum(least, wide)
        assert least is not None
        return least

    def pack(self) -> torch.Tensor:
        """[number of slabs] float32, family after family."""
        largest = torch.finfo(torch.float32).max
        return torch.cat([value.reshape(-1) for value in self.values]).clamp(max=largest).float()

    @classmethod
    def unpack(cls, shape: Sequence[int], packed: torch.Tensor) -> Slabs:
        """Raises ValueError for a vector of another length."""
        sizes = [[shape[axis] for axis in axes] for axes in families(shape)]
        if packed.numel() != sum(map(math.prod, sizes)):
            raise ValueError(f"{packed.numel()} numbers for the slabs of {list(shape)}")
        parts = packed.double().split([math.prod(each) for each in sizes])
        values = [part.reshape(each) for part, each in zip(parts, sizes, strict=True)]
        return cls(shape=tuple(shape), values=values)


def unpack_errors(
    shape: Sequence[int], packed: torch.Tensor
) -> tuple[Slabs | None, list[torch.Tensor] | None]:
    """The own errors of an output's slabs, and their least scales in rms of the whole output; each
    None where `packed` has none. Raises ValueError for a vector of another length."""
    if not packed.numel():
        return None, None
    num = sum(math.prod(shape[axis] for axis in axes) for axes in families(shape))
    errors = Slabs.unpack(shape, packed[:num])
    if packed.numel() == num:
        return errors, None
    return errors, Slabs.unpack(shape, packed[num:]).values


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Root mean squares of the slabs of a tensor, without least ones."""

    shape: tuple[int, ...]
    relative: list[torch.Tensor]
    """By family, relative to `largest`."""
    whole: float
    """Root mean square of the whole tensor, relative to `largest`."""
    largest: float
    """Largest magnitude that counts; 0 where all are 0."""
    is_finite: bool
    """True if every element is."""

    def slabs(self, floors: Sequence[float | torch.Tensor] = ()) -> Slabs:
        """The scales, none below its floor times that of the whole tensor."""
        if self.largest == 0.0:
            return Slabs(shape=self.shape, values=self.relative)
        values = [
            torch.maximum(
                one, torch.as_tensor(least, dtype=torch.float64, device=one.device) * self.whole
            ).mul_(self.largest)
            for one, least in zip(self.relative, floors or [0.0] * len(self.relative), strict=True)
        ]
        return Slabs(shape=self.shape, values=values, whole=self.whole * self.largest)


def scales_of(tensor: torch.Tensor) -> Scales:
    """Root mean square of the finite elements of each slab, without a sentinel. No square is too
    large for its type."""
    shape = tuple(tensor.shape)
    groups = families(shape)
    device = tensor.device
    largest, is_finite = _largest_finite(tensor)
    if largest == 0.0:
        none = _zeros(shape, device)
        return Scales(shape=shape, relative=none, whole=0.0, largest=0.0, is_finite=is_finite)
    is_whole = is_finite
    if (rest := _below_sentinel(tensor, largest)) is not None:
        largest, is_whole = rest, False
    # Squares too small for float32 lie far below any floor, and their sums are float64.
    wide = torch.float64 if tensor.dtype is torch.float64 else torch.float32

    def share(found: Sequence[Block]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        sums, counts = _zeros(shape, device), _zeros(shape, device)
        for block in found:
            part = tensor[block].to(wide)
            finite = None if is_whole else part.abs() <= largest
            squares = (part if finite is None else part.where(finite, 0.0)).div(largest).square_()
            for total, count, axes in zip(sums, counts, groups, strict=True):
                inside = tuple(block[axis] for axis in axes)
                others = [axis for axis in range(len(shape)) if axis not in axes]
                total[inside] += squares.sum(others, dtype=torch.float64) if others else squares
                if finite is None:
                    count[inside] += math.prod(part.shape[axis] for axis in others)
                else:
                    count[inside] += finite.sum(others) if others else finite
        return sums, counts

    (sums, counts), *more = THREADS.share_out(list(blocks_of(tensor)), share)
    for other in more:
        for mine, theirs in zip((*sums, *counts), (*other[0], *other[1]), strict=True):
            mine += theirs
    whole = math.sqrt(float(sums[0].sum()) / max(1.0, float(counts[0].sum())))
    relative = [
        total.div_(count.clamp_(min=1)).sqrt_() for total, count in zip(sums, counts, strict=True)
    ]
    return Scales(shape=shape, relative=relative, whole=whole, largest=largest, is_finite=is_finite)


def root_mean_squares(
    tensor: torch.Tensor, *, floors: Sequence[float | torch.Tensor] = ()
) -> Slabs:
    """`scales_of`, none below its floor times that of the whole tensor.

    Args:
        floors: of each family, one number or one for each slab; none for 0.
    """
    return scales_of(tensor).slabs(floors)


def largest_by_slab(
    shape: Sequence[int], make: Callable[[Block], torch.Tensor | None], *, device: torch.device
) -> Slabs:
    """The largest element of each slab, of a tensor that `make` gives block by block; at least 0,
    which all of a block is where it gives None."""
    groups = families(shape)

    def share(found: Sequence[Block]) -> list[torch.Tensor]:
        largest = _zeros(shape, device)
        for block in found:
            made = make(block)
            if made is None or not made.numel():
                continue
            part = made.double()
            for most, axes in zip(largest, groups, strict=True):
                inside = tuple(block[axis] for axis in axes)
                others = [axis for axis in range(len(shape)) if axis not in axes]
                here = part.amax(others) if others else part
                most[inside] = torch.maximum(most[inside], here)
        return largest

    values, *more = THREADS.share_out(list(blocks(shape, limit_on(device))), share)
    for other in more:
        values = [torch.maximum(*pair) for pair in zip(values, other, strict=True)]
    return Slabs(shape=tuple(shape), values=values)


def _zeros(shape: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    """A number for each slab, by family."""
    sizes = [[shape[axis] for axis in axes] for axes in families(shape)]
    return [torch.zeros(size, dtype=torch.float64, device=device) for size in sizes]


def spread(packed: torch.Tensor, part: Sequence[int], whole: Sequence[int]) -> torch.Tensor:
    """A packed `Slabs` of the first rows of a tensor, taken for all of its rows.

    Slabs that lie across the batch keep their values, any other gets the largest of all.
    """
    if not packed.numel():
        return packed
    known = dict(zip(families(part), Slabs.unpack(part, packed).values, strict=True))
    most = packed.double().max()
    values = [
        known[axes]
        if axes and 0 not in axes and axes in known
        else torch.full([whole[axis] for axis in axes], float(most), device=packed.device)
        for axes in families(whole)
    ]
    return Slabs(shape=tuple(whole), values=values).pack()


def _largest_finite(tensor: torch.Tensor) -> tuple[float, bool]:
    """Largest absolute value among the finite elements, and True if all of them are finite."""
    parts = [one for one in blocks_of(tensor) if tensor[one].numel()]
    if not parts:
        return 0.0, True

    def share(found: Sequence[Block]) -> torch.Tensor:
        return torch.stack([largest_size(tensor[one]) for one in found]).max()

    largest = float(torch.stack(THREADS.share_out(parts, share)).max())
    if math.isfinite(largest):
        return largest, True
    finite = [largest_size(tensor[one].where(tensor[one].isfinite(), 0.0)) for one in parts]
    return float(torch.stack(finite).max()), False


def largest_size(tensor: torch.Tensor) -> torch.Tensor:
    """[] the largest absolute value, NaN where one is: one pass on a card, and a fast one on a
    CPU."""
    if tensor.device.type != "cpu":
        return vector_norm(tensor, ord=math.inf)
    low, high = torch.aminmax(tensor)
    return torch.maximum(-low, high)


def _below_sentinel(tensor: torch.Tensor, largest: float) -> float | None:
    """Largest magnitude below a sentinel; None if the largest is none, as the first block shows in
    most tensors."""
    count, rest = 0, 0.0
    with THREADS.held_back():
        for block in blocks_of(tensor):
            sizes = tensor[block].abs()
            if sizes.numel():
                rest = max(rest, float(sizes.where(sizes < largest, 0.0).max()))
                if rest >= largest / SENTINEL_RATIO:
                    return None
                count += int((sizes == largest).sum())
    return rest if is_sentinel(largest, rest, count) else None
