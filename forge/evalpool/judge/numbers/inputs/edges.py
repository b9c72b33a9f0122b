"""Edge values planted into one input set: where a reference may behave otherwise than in between.

Called by input_sets.py for the variant PLANTED_IN, as far as the reference bears it:

    zeros        scattered, and a whole slice of the first axis that has enough: masks, norms of 0
    large        a slice far above all others, of one input: a softmax without its maximum overflows
    constants    values around those that the reference compares with: clamps, thresholds
    NaN and inf  where the reference looks for them
    integers     negative ones where nothing may be an index; lengths of 0; the label left out
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from forge.evalpool.judge.numbers.opcount import OpCounter

PLANTED_IN = "unlike"
"""The variant of every draw that carries edge values."""
RAISED_BY = 100.0
"""exp of it overflows in fp32; two orders above values near 1."""
MIN_SLICES = 4
"""Slices of an axis of which one may be zeros and another raised."""
ZERO_SHARE, CONSTANT_SHARE, LABEL_SHARE = 16, 64, 8
"""One element in so many is zero, near a constant, or the label that a loss leaves out."""
MAX_PLANTED = 4096
MIN_CONSTANT, MAX_CONSTANT = 1e-3, 1e4
"""Magnitudes of constants that inputs are drawn around. Smaller ones are an epsilon, which zeros
reach; larger ones stand for infinity."""
NOT_FINITE = ("nan_to_num", "isnan", "isinf", "isfinite")
"""Operations that look for values that are not finite."""
INDEXING = (
    *("index", "gather", "scatter", "embedding", "take", "one_hot", "nll_loss", "bincount"),
    *("search", "bucket", "repeat_interleave", "ctc_loss", "put"),
)
"""Parts of names of operations that take indices: a negative one ends a process on a GPU."""
SELECTING = {
    *("max", "min", "argmax", "argmin", "topk", "kthvalue", "sort", "argsort", "median"),
    *("nanmedian", "mode", "cummax", "cummin"),
}
"""Operations that return positions, which equal values leave open."""
IGNORED = re.compile(r"\bignore_index\s*=\s*(-?\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """The edges of one reference."""

    constants: tuple[float, ...] = ()
    """Numbers that its operations compare with."""
    is_finite: bool = True
    """False if it looks for values that are not finite."""
    has_indices: bool = True
    """False if no integer of its inputs can be an index."""
    is_decided: bool = True
    """False if equal values, or none that is a number, would leave its answer open: zeros and
    large slices have such."""
    ignored: int | None = None
    """The label that its loss leaves out, where its source names one."""

    @classmethod
    def of(cls, counted: OpCounter | None, source: str) -> Edges:
        """The edges that one call of a reference and its source show.

        Args:
            counted: from `count_work`; None where the call cannot be watched.
        """
        named = IGNORED.search(source)
        ignored = int(named.group(1)) if named else None
        if counted is None:
            return cls(ignored=ignored)
        sizes = sorted(one for one in counted.constants if one == one)
        return cls(
            constants=tuple(one for one in sizes if MIN_CONSTANT <= abs(one) <= MAX_CONSTANT),
            is_finite=not any(name.rstrip("_") in NOT_FINITE for name in counted.work)
            and float("inf") not in counted.constants,
            has_indices=any(part in name for name in counted.work for part in INDEXING),
            is_decided=not counted.is_truncating
            and not any(name.rstrip("_") in SELECTING for name in counted.work),
            ignored=ignored,
        )

    def plant_(self, value: torch.Tensor, *, is_raised: bool, signs: bool) -> torch.Tensor:
        """A contiguous floating tensor with edge values, written in place.

        Args:
            is_raised: a slice is raised, too.
            signs: values may be negative.
        """
        if value.numel() < 2:
            return value
        flat = value.view(-1)
        size = len(flat)
        limit = torch.finfo(value.dtype).max / 4
        for constant in self.constants:
            places = _places(flat, CONSTANT_SHARE)
            around = torch.rand(len(places), device=value.device) * 4.5 - 2.0  # from -2 to 2.5
            around.mul_(constant).clamp_(-limit, limit)
            flat[places] = (around if signs else around.abs_()).to(value.dtype)
        if self.is_decided:
            flat[_places(flat, ZERO_SHARE)] = 0
            _plant_slices(value, is_raised=is_raised)
        if not self.is_finite:
            for special in (float("nan"), float("inf"), float("-inf")):
                flat[_places(flat, size)] = special
        return value

    def labels(self, value: torch.Tensor) -> torch.Tensor:
        """Integers with some at an edge: of other sign, or the label left out."""
        made = value.clone()
        flat = made.view(-1)
        if self.ignored is not None:
            flat[_places(flat, LABEL_SHARE)] = self.ignored
        elif not self.has_indices and value.ndim > 1 and value.dtype.is_signed:
            flat[torch.rand(len(flat), device=value.device) < 0.5] *= -1
        return made


def _plant_slices(value: torch.Tensor, *, is_raised: bool) -> None:
    axis = next((a for a, length in enumerate(value.shape) if length >= MIN_SLICES), None)
    if axis is None or value.shape[axis] == value.numel():
        return
    zero, raised = torch.randperm(value.shape[axis], device=value.device)[:2].tolist()
    value.select(axis, zero).zero_()
    if is_raised:
        value.select(axis, raised).add_(RAISED_BY)


def _places(flat: torch.Tensor, share: int) -> torch.Tensor:
    """[num] random places, one in `share` and one at least."""
    num = min(MAX_PLANTED, max(1, len(flat) // share))
    return torch.randint(len(flat), (num,), device=flat.device)
