"""Typical sizes of the elements of small outputs, from all sets of a draw.

Called by the oracle for outputs without slabs and with MAX_FEW elements at most. Beside a sum of
squares of 5e5 the rms of the output would accept any mean and any maximum. One element may be small
by chance, so its size on one set says little: its share of the output's rms, the largest among all
sets, is what its tolerance is scaled by. It is added to its own error, which compare.py and
gpu_compare.py add to a tolerance relative to the element alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.numbers.called import dtype_name
from forge.evalpool.judge.numbers.finite import widened
from forge.evalpool.judge.numbers.own_error import MAX_TYPICAL
from forge.evalpool.judge.numbers.slabs import root_mean_squares
from forge.evalpool.judge.numbers.tolerance import (
    ERROR_FACTOR,
    floor_of,
    has_own_scales,
    tolerance,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_SHARE = 2.0**-24
"""Share of an element that is next to nothing on every set."""
PRECISE = 1e-3
"""Largest own error of an element, relative to it, whose share counts. Others may be what remains
of intermediate results as large as the output; those of half precision are not precise enough."""
CHANCE = 4.0
"""Factor of an element's own error: another kernel loses more by chance, not more than the largest
error of the output."""


def errors_of_few(
    outputs: Sequence[torch.Tensor], errors: Sequence[torch.Tensor], *, precision: str
) -> list[torch.Tensor]:
    """The packed own errors of one output on each set, with the typical sizes of its elements.

    Args:
        outputs, errors: of each set, the first as given; the errors are a packed `Slabs`, or empty.
    """
    first = outputs[0]
    shape = tuple(first.shape)
    is_alike = all(tuple(one.shape) == shape for one in outputs)
    if not (first.is_floating_point() and is_alike and has_own_scales(shape)):
        return list(errors)
    sizes = [root_mean_squares(widened(one), floor=1.0).least() for one in outputs]
    name = dtype_name(first)
    close, floor = tolerance(name, precision), floor_of(name, precision)
    shares = _shares(outputs, sizes).clamp_(MIN_SHARE, 1.0)
    shares[~_are_precise(outputs, errors)] = 1.0
    made: list[torch.Tensor] = []
    for number, (size, error) in enumerate(zip(sizes, errors, strict=True)):
        if not error.numel():  # unknown: the scale is that of the whole output
            made.append(error)
            continue
        typical = min(floor * sizes[0], MAX_TYPICAL * size) if number else 0.0
        own = error.double()
        largest = own.max()
        alike = torch.minimum(shares * (own / shares).max(), largest)
        own = torch.maximum(alike, torch.minimum(own * CHANCE, largest))
        made.append((own + shares * (size + typical) * (close / ERROR_FACTOR)).float())
    return made


def _shares(outputs: Sequence[torch.Tensor], sizes: Sequence[float]) -> torch.Tensor:
    """[elements] of each its largest magnitude in rms of the output."""
    shares = torch.zeros(outputs[0].numel(), dtype=torch.float64, device=outputs[0].device)
    for output, size in zip(outputs, sizes, strict=True):
        if size > 0:
            wide = widened(output).double().abs().nan_to_num_(0.0, 0.0, 0.0)
            shares = torch.maximum(shares, wide.reshape(-1) / size)
    return shares


def _are_precise(outputs: Sequence[torch.Tensor], errors: Sequence[torch.Tensor]) -> torch.Tensor:
    """[elements] True for those that eager computes precisely on every set."""
    made = torch.ones(outputs[0].numel(), dtype=torch.bool, device=outputs[0].device)
    for output, error in zip(outputs, errors, strict=True):
        if error.numel():
            made &= error < PRECISE * widened(output).abs().reshape(-1)
    return made
