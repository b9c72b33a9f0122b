"""Finds what holds of an input in every draw, and so of a planted one: sorted rows, a triangle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.numbers.called import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MIN_ROW = 8
"""Elements of a row that are not sorted, or all different, by chance."""
MIN_ORDERED = 16
"""Rows of a few columns of which one is not below another by chance: corners of boxes."""
MAX_CHANCE = 1e-6
"""Chance by which indices are all different in all draws, below which it is by design."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Properties that an input has in every draw."""

    form: str = "none"
    """free, two (values), ordered (columns), sorted, distinct, hot (one of a row), symmetric, sums
    (of rows are 1), norms (of rows are 1), whole (floats that are integers), none (nothing can be
    planted)."""
    low: float = 0.0
    high: float = 0.0
    is_constant: bool = False
    """True if it is the same in every draw."""
    fixed: torch.Tensor | None = None
    """[elements] True where it is the same in every draw, of one that is not constant."""

    @classmethod
    def of(cls, draws: Sequence[torch.Tensor], *, permutes: bool) -> Domain:
        """The domain of an input in several draws; `permutes` as in `Looks`."""
        first, floats = draws[0], draws[0].is_floating_point()
        is_plain = first.layout is torch.strided and not first.is_complex()
        if not is_plain or not all(one.numel() for one in draws) or (floats and first.itemsize < 2):
            return cls()
        same = [one for one in draws[1:] if one.shape == first.shape]
        is_constant = bool(same) and all(torch.equal(first, one) for one in same)
        form = _form(list(draws), is_constant=is_constant, permutes=permutes)
        may_be_fixed = floats and form != "two" and not is_constant
        fixed = (first == same[0]).flatten() if same and may_be_fixed else None
        ends = [torch.stack(torch.aminmax(one)).tolist() for one in draws]
        return cls(
            form=form,
            low=float(min(one[0] for one in ends)),
            high=float(max(one[1] for one in ends)),
            is_constant=is_constant,
            fixed=fixed if fixed is not None and bool(fixed.any()) else None,
        )


def _form(draws: list[torch.Tensor], *, is_constant: bool, permutes: bool) -> str:
    first, floats = draws[0], draws[0].is_floating_point()
    if first.numel() == 1:
        return "free" if floats else "two" if first.dtype is torch.bool else "single"
    rows = [rows_of(one.reshape(1) if not one.ndim else one).double() for one in draws]
    every = torch.cat([one.flatten() for one in rows])
    low, high = every.aminmax()
    length = min(one.shape[-1] for one in rows)

    def holds(check: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        return all(bool(check(one).all()) for one in rows)

    if first.dtype is torch.bool or (low != high and holds(lambda x: (x == low) | (x == high))):
        is_hot = first.ndim > 1 and length > 1 and holds(lambda x: x.sum(-1) == 1)
        return "hot" if is_hot else "two"
    if low == high:
        return "free"
    is_long = length >= MIN_ROW or (first.ndim == 1 and length > 2)
    if is_long and holds(lambda x: x.diff(dim=-1) >= 0):
        is_dense = not floats and holds(lambda x: x.diff(dim=-1) == 1)
        return "distinct" if is_dense else "sorted"
    if not floats:
        places = float(high - low) + 1
        chance = math.exp(-sum(one.numel() for one in rows) * (length - 1) / (2 * places))
        is_design = (permutes or chance < MAX_CHANCE) and length > 1
        is_distinct = is_design and holds(lambda x: x.sort(-1).values.diff(dim=-1) != 0)
        return "distinct" if is_distinct else "free"
    if 1 < length <= MIN_ROW and min(len(one) for one in rows) >= MIN_ORDERED:
        later = [(i, j) for j in range(length) for i in range(j)]
        if any(holds(lambda x, i=i, j=j: x[:, i] <= x[:, j]) for i, j in later):
            return "ordered"
    if first.ndim > 1 and all(
        one.shape[-1] == one.shape[-2] and torch.equal(one, one.mT) for one in draws
    ):
        return "symmetric"
    if low >= 0 and holds(lambda x: (x.sum(-1) - 1).abs() < 1e-2):
        return "sums"
    if first.ndim > 1 and holds(lambda x: (x.square().sum(-1) - 1).abs() < 1e-2):
        return "norms"
    return "whole" if not is_constant and bool((every == every.round()).all()) else "free"
