"""Least scales of an output's slabs, from all sets of a draw.

Called by the oracle, behind errors/own_error.py. A slab that is small on one set may be so by
chance, or because an intermediate result cancels in it: its scale is at least a share of the whole
output's.
That share is FLOOR, or 1 for slabs of few elements, unless the slab is smaller on every set and
eager computes it precisely: beside squares of 1e6, probabilities are judged by their own size, and
beside a sum of squares, a mean.

On inputs of ours an honest kernel may lose roundings of what an intermediate result has on the
given ones: as much of the given output's size counts as an own error, if this output is smaller.
Where all of an output vanishes, as log(sigmoid(x)) does for large x, it may lose all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.numbers.called import dtype_name
from forge.evalpool.judge.numbers.finite import widened
from forge.evalpool.judge.numbers.slabs import Scales, Slabs, scales_of, unpack_errors
from forge.evalpool.judge.numbers.tolerance import (
    ERROR_FACTOR,
    HALF_FLOOR,
    families,
    floor_of,
    floors_of,
    is_small,
    tolerance,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_SHARE = 2.0**-24
"""Share of a slab that is next to nothing on every set."""
PRECISE, PRECISE_HALF = 1e-3, 3e-2
"""Largest own error in a slab, in its rms, whose share counts: others may be what remains of
intermediate results as large as the output. In half precision eager rounds each element."""
MAX_TYPICAL = 2.0
"""Scale that the typical size of an output may give to every element, in rms of the output."""
VANISHED = 2.0**-7
"""Size of an output that has vanished, in usual sizes of the given one's elements."""
ROUNDINGS = 16.0
"""Own error of such an output, in roundings of that size: 1 - exp(-x) for elu loses two of 1, where
a usual size may be 0.05."""
MAX_SAMPLE = 1 << 20
"""Elements from which a usual size is taken."""
CHANCE = 4.0
"""Factor of the own error of a small slab: another kernel loses more by chance, not more than the
largest error of the output."""
NUM_FEW = 32
MIN_SETS = 4
"""Sets that show the typical sizes of more small slabs than these: of two sets, some are small on
both by chance."""


def with_shares(
    outputs: Sequence[torch.Tensor],
    errors: Sequence[torch.Tensor],
    *,
    precision: str,
    scales: Sequence[Scales | None] = (),
) -> list[torch.Tensor]:
    """The packed own errors of one output on each set, and behind them the least scale of each
    slab, in rms of the whole output, as `unpack_errors` reads them.

    Args:
        outputs, errors: of each set, the first as given; the errors are a packed `Slabs`, or empty.
        scales: of each output, as far as they are known.
    """
    first = outputs[0]
    shape = tuple(first.shape)
    is_alike = all(tuple(one.shape) == shape for one in outputs)
    if not (first.is_floating_point() and is_alike and first.numel()):
        return list(errors)
    name = dtype_name(first)
    groups, limits = families(shape), floors_of(name, precision, shape)
    floor, close = floor_of(name, precision), tolerance(name, precision) / ERROR_FACTOR
    precise = PRECISE_HALF if floor == HALF_FLOOR else PRECISE
    known = zip(scales or [None] * len(outputs), outputs, strict=True)
    sizes = [(one or scales_of(widened(output))).slabs() for one, output in known]
    own = [unpack_errors(shape, one)[0] for one in errors]
    shares = _shares(sizes, own, limits=limits, precise=precise)
    usual = _usual_size(first)
    rounding = ROUNDINGS * torch.finfo(first.dtype if first.itemsize == 8 else torch.float32).eps
    made: list[torch.Tensor] = []
    for number, (scale, error, packed) in enumerate(zip(sizes, own, errors, strict=True)):
        if error is None:  # the scale is that of slabs of which nothing is known
            made.append(packed)
            continue
        typical = min(floor * sizes[0].whole, MAX_TYPICAL * scale.whole) if number else 0.0
        least = typical * close
        if scale.whole < VANISHED * usual:
            least = max(least, rounding * usual)
        values: list[torch.Tensor] = []
        for axes, lost, share, limit in zip(groups, error.values, shares, limits, strict=True):
            lost = _alike(lost, share) if is_small(shape, axes) else lost
            values.append(torch.maximum(lost, share * (least / limit)))
        parts = [Slabs(shape=shape, values=values), Slabs(shape=shape, values=shares)]
        made.append(torch.cat([part.pack() for part in parts]))
    return made


def _usual_size(output: torch.Tensor) -> float:
    """Median magnitude of the elements. A few large ones, as a quotient has, say nothing of it."""
    flat = output.reshape(-1)
    sample = widened(flat[:: flat.numel() // MAX_SAMPLE + 1]).abs().float()
    return float(sample.nan_to_num_(0.0, 0.0, 0.0).median())


def _alike(own: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """[slabs] own errors of small slabs of which each may lose what another of its size loses."""
    largest = own.max()
    alike = torch.minimum(shares * (own / shares).max(), largest)
    return torch.maximum(alike, torch.minimum(own * CHANCE, largest))


def _shares(
    scales: Sequence[Slabs],
    own: Sequence[Slabs | None],
    *,
    limits: Sequence[float],
    precise: float,
) -> list[torch.Tensor]:
    """[slabs] by family: each slab's largest share of the output's rms, at most the family's limit.
    That is also the share of a slab of zeros, and of one that eager computes with a larger error
    than `precise` on some set."""
    shares: list[torch.Tensor] = []
    for number, limit in enumerate(limits):
        sizes = [scale.values[number] for scale in scales]
        found = torch.zeros_like(sizes[0])
        is_known = torch.ones_like(found, dtype=torch.bool)
        for size, scale, error in zip(sizes, scales, own, strict=True):
            if scale.whole > 0:
                found = torch.maximum(found, size / scale.whole)
            if error is not None:
                is_known &= error.values[number] <= precise * size
        is_known &= found > 0
        if len(scales) < MIN_SETS and limit == 1.0 and found.numel() > NUM_FEW:
            is_known.fill_(False)
        shares.append(found.where(is_known, limit).clamp_(MIN_SHARE, limit))
    return shares
