# pyright: strict
"""Parameters moved off their defaults, so that a constant cannot stand for them.

A parameter or buffer that is one value everywhere (a LayerNorm's weight of ones, a bias of zeros)
moves by half of its natural scale, and of a parameter one element in eight gets the other sign: an
extremum before a negative factor is another one. Any other parameter gets noise of a tenth of its
rms, and so do running statistics. Where the reference looks for a maximum, what may be a bias is
negative, or a maximum that begins with 0 would be right; where it looks for a minimum, positive.

A buffer of one number moves where it is 0 or 1: any other may follow from the model's sizes. An
integer that may count calls is as after many of them, a constant mask gets some of the other value.
Where the reference does not bear that, signs are kept, in the end all moves by a tenth alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

NATURAL = 0.85
"""Largest change of a constant parameter, relative to it (or to 1, of zeros): evenly drawn, its
standard deviation is 0.49, and it changes no sign."""
SLIGHT = 0.1
"""Standard deviation of any other change, relative to the parameter's rms + 0.1."""
NEGATED_SHARE, MIN_NEGATED = 8, 16
"""One element in so many gets the other sign, of a parameter of at least so many."""
MASK_SHARE = 0.7
"""Share of a mask that stays as it is."""
MAXIMA = ("max", "sort", "topk", "median", "kthvalue", "sumexp")
"""Parts of names of operations that look for a maximum or a place in an order, as softmax does."""
FEW_CALLS, MANY_CALLS = 8, 32
"""Calls that a counter has seen: so few where it may be an index, else more than so many, and more
than any number that the reference compares with."""
MAX_CALLS = 1 << 20
SMALL = 0.1
"""A constant below it moves as 0 does: by half of itself it would stay next to nothing."""


class Reach(StrEnum):
    """How far parameters move, from the farthest."""

    SIGNS = "signs"
    NATURAL = "natural"
    """Signs are kept."""
    SLIGHT = "slight"
    """By a tenth alone."""


def sign_of(names: Iterable[str]) -> int:
    """-1 for operations that look for a maximum, 1 for a minimum alone, else 0: an extremum that
    begins with 0 is wrong where all values have this sign."""
    every = list(names)
    if any(part in name for name in every for part in MAXIMA):
        return -1
    return int(any("min" in name for name in every))


def move(
    model: Any, *, far: Reach = Reach.SIGNS, sign: int = 0, bounds: Iterable[float] | None = None
) -> bool:
    """Moves the floating parameters and running statistics of a module, in place. Returns True if a
    move that is not so far would be another one.

    Args:
        sign: of all elements of what may be a bias (`sign_of`); 0 keeps them.
        bounds: numbers that the reference compares with; None where an integer may be an index.
    """
    is_slight = far is Reach.SLIGHT
    has_constants = False
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.numel():
            value = parameter.data
            first = value.flatten()[0]
            if not is_slight and parameter.requires_grad and _is_constant(value):
                constant = float(first)
                _move_constant(value, constant)
                if far is Reach.SIGNS and constant and value.numel() >= MIN_NEGATED:
                    chosen = torch.rand(value.shape, device=value.device) < 1 / NEGATED_SHARE
                    chosen.view(-1)[random.randrange(value.numel())] = True
                    value.copy_(torch.where(chosen, -value, value))
                has_constants = True
            else:
                scale = SLIGHT * (value.float().square().mean().sqrt() + 0.1)
                value.add_(torch.randn_like(value) * scale)
                constant = 0.0
            if sign and far is Reach.SIGNS and not constant and _is_mixed_vector(value):
                value.abs_().add_(value.mean() / 4).mul_(sign)
                has_constants = True
    reach = SLIGHT if is_slight else 0.5
    for module in model.modules():
        if isinstance(module, _NormBase) and module.running_mean is not None:
            module.running_mean.add_(torch.randn_like(module.running_mean) * reach)
            assert module.running_var is not None
            module.running_var.mul_((torch.randn_like(module.running_var) * reach).exp())
            if module.num_batches_tracked is not None and far is Reach.SIGNS:
                _count(module.num_batches_tracked, bounds or ())
            has_constants = not is_slight
        elif not is_slight:
            for buffer in module.buffers(recurse=False):
                if not buffer.numel() or buffer.is_complex() or not _is_constant(buffer):
                    continue
                constant = float(buffer.flatten()[0])
                is_default = buffer.numel() > 1 or constant in (0.0, 1.0)
                if buffer.is_floating_point() and is_default:
                    _move_constant(buffer, constant)
                    has_constants = True
                elif buffer.dtype is torch.bool and buffer.numel() > 1:
                    buffer.logical_xor_(torch.rand(buffer.shape, device=buffer.device) > MASK_SHARE)
                    has_constants = True
                elif buffer.dtype is not torch.bool and is_default and far is Reach.SIGNS:
                    _count(buffer, None if buffer.numel() > 1 else bounds)
                    has_constants = True
    return has_constants


def _count(value: torch.Tensor, bounds: Iterable[float] | None) -> None:
    if bounds is None or random.random() < 1 / FEW_CALLS:
        value.add_(torch.randint_like(value, 1, FEW_CALLS))
        return
    most = torch.iinfo(value.dtype).max
    least = max([one for one in bounds if one < MAX_CALLS], default=0)
    value.fill_(int(min(max(least, MANY_CALLS) * 2 ** random.uniform(1, 7), most)))


def _is_mixed_vector(value: torch.Tensor) -> bool:
    """True for elements of both signs along one axis."""
    is_vector = value.numel() == max(value.shape, default=1)
    return is_vector and bool((value < 0).any()) and bool((value > 0).any())


def _is_constant(value: torch.Tensor) -> bool:
    return bool((value == value.flatten()[0]).all())


def _move_constant(value: torch.Tensor, constant: float) -> None:
    if 0 < abs(constant) < SMALL:
        value.add_(torch.rand_like(value).mul_(math.copysign(NATURAL, constant)))
        return
    change = torch.rand_like(value).mul_(2).sub_(1).mul_(NATURAL)
    value.add_(change.mul_(abs(constant) or 1.0))
