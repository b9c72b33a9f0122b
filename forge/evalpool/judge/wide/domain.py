"""Finds what holds of an input in every draw, and so of a planted one: sorted rows, a triangle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from forge.evalpool.judge.numbers.blocks import widened
from forge.evalpool.judge.numbers.called import rows_of

MIN_ROW = 8
"""Elements of a row that are not sorted, or all different, by chance."""
MIN_ORDERED = 16
"""Rows of a few columns of which one is not below another by chance: corners of boxes."""
MIN_FILLED = 6
"""Rows of which no column of two values has the larger one alone by chance."""
MAX_CHANCE = 1e-6
"""Chance by which indices are all different in all draws, below which it is by design."""


def opened(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor: both parts of complex ones, float32 for floats of one byte."""
    return torch.view_as_real(tensor) if tensor.is_complex() else widened(tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Properties that an input has in every draw."""

    form: str = "none"
    """free, two (values), ordered (columns), sorted, distinct, hot (one of a row), symmetric, sums
    (of rows are 1), norms (of rows are 1), whole (floats that are integers), none (nothing can be
    planted)."""
    low: float = 0.0
    high: float = 0.0
    fixed: torch.Tensor | None = None
    """[elements] True where it is the same in every draw, of one that is not so as a whole."""
    is_filled: bool = False
    """True for two values of which each row has the larger one by design, as a causal mask."""

    @classmethod
    def of(cls, draws: Sequence[torch.Tensor], *, permutes: bool) -> Domain:
        """The domain of an input in several draws; `permutes` as in `Looks`."""
        if draws[0].layout is not torch.strided or not all(one.numel() for one in draws):
            return cls()
        draws = [opened(one) for one in draws]
        first, floats = draws[0], draws[0].is_floating_point()
        same = [one for one in draws[1:] if one.shape == first.shape]
        is_constant = bool(same) and all(torch.equal(first, one) for one in same)
        form = _form(list(draws), is_constant=is_constant, permutes=permutes)
        may_be_fixed = floats and form not in ("two", "hot") and not is_constant
        fixed = (first == same[0]).flatten() if same and may_be_fixed else None
        ends = [torch.stack(torch.aminmax(one)).tolist() for one in draws]
        return cls(
            form=form,
            low=float(min(one[0] for one in ends)),
            high=float(max(one[1] for one in ends)),
            is_filled=form == "two" and _is_filled(draws, is_constant=is_constant),
            fixed=fixed if fixed is not None and bool(fixed.any()) else None,
        )

    def is_alike(self, other: Domain) -> bool:
        """True for the same form and, of two values, the same ones."""
        is_two = self.form == "two"
        ends = (self.low, self.high), (other.low, other.high)
        return self.form == other.form and (not is_two or ends[0] == ends[1])

    def kept(self, value: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """A tensor with plants in which the form holds again: other elements give way.

        Args:
            at: [plants] flat indices.
        """
        if self.form == "sorted":
            return value.sort(-1).values
        if self.form == "whole":
            return value.round()
        if self.form not in ("symmetric", "sums", "norms") and not self.is_filled:
            return value
        own = value.new_zeros(value.shape, dtype=torch.bool)
        own.view(-1)[at] = True
        if self.is_filled:  # a plant gives way where a row would have none
            is_empty = ~(value == self.high).any(-1, keepdim=True)
            return torch.where(own & is_empty, torch.full_like(value, self.high), value)
        if self.form == "symmetric":
            return torch.where(own & ~own.mT.tril(-1), value, value.mT)
        power = 2 if self.form == "norms" else 1
        tiny = torch.finfo(torch.float64).tiny  # others may all be 0
        size = value.double().abs() ** power + tiny
        planted, others = (torch.where(one, size, 0).sum(-1, keepdim=True) for one in (own, ~own))
        left = (1 - planted).clamp(min=0) / others.clamp(min=tiny)
        made = size * torch.where(own, 1 / planted.clamp(min=1), left)
        made = made.sqrt().copysign(value) if power == 2 else made
        return torch.where(own.any(-1, keepdim=True), made.to(value.dtype), value)


def _is_filled(draws: Sequence[torch.Tensor], *, is_constant: bool) -> bool:
    """True if each row has the largest value: in an element of every row and draw, or in an input
    that no draw changes."""
    if draws[0].shape[-1:].numel() < 2:
        return False
    rows = [rows_of(one) == one.max() for one in draws]
    length = min(one.shape[-1] for one in rows)
    every = torch.cat([one[:, :length] for one in rows])
    is_design = len(every) >= MIN_FILLED and bool(every.all(0).any())
    return is_design or (is_constant and bool(every.any(-1).all()))


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
