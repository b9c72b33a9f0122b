"""Booleans, integers and two-valued floats drawn anew within their meaning.

Called by `input_sets.py` for every set but the given one. What the problem itself draws anew stays
as it was drawn; a constant is replaced:

    booleans           at a density of the set's own; rows that had one that is true keep one
    two-valued floats  the same with their two values; ones get zeros
    constant floats    moved by about half of their size: states of zeros, a single scale
    all different      in another order: positions, a permutation
    sorted             other sorted values between the same ends: offsets, segment ids; unlike gaps
                       stay below the largest of them
    equal values       from 1 to the value: lengths; ones of two axes or more: a mask
    a single value     a bool is the other one, an integer a lower one above 1: flags, steps
    other integers     over the range of the given ones: indices, labels
    numbers            floats among the arguments, no tensors, as 0.5: a part of themselves. On a
                       CPU alone, where each set has a capture of its own if its arguments differ

A constant is not replaced as a whole in every set, or one element would tell which set it is: in
one set of a draw at least it stays but for a few secret places behind its beginning, in others but
for some slices (`Part`).

Nothing leaves the range of the given values: on a GPU an index outside ends the process. But edge
values do (edges.py) where no integer can be an index: a length of 0, negative numbers.
"""

from __future__ import annotations

import math
import random
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from forge.evalpool.judge.numbers.inputs.edges import Edges

DENSITIES = {"spiked": 0.5, "unlike": 0.15, "near_one": 0.9}
"""Shares of true values, by variant; DENSITY for any other."""
DENSITY = 0.7
PLACE_SHARE, MIN_PLACES = 1024, 16
"""One element in so many changes where a constant stays but for a few; at least so many."""
SCALAR_PARTS = 64
"""A float among the arguments becomes so many parts of itself, less up to half of them: of the same
sign, within [0, 1] if it was, and as exact."""
SLICE_SHARE = 4
"""One slice in so many changes where a constant stays but for some."""
MULTIPLE = 16
"""Triton specialises kernels on integers that are multiples of it, and on 1."""
MAX_SINGLE = 4096
"""Bound of a single integer that is drawn anew."""
EXCHANGES = 4
"""Rounds in which segments of unlike length exchange parts."""
MOVED = 0.85
"""Largest relative change of a float that is the same everywhere (of zeros, absolute)."""


class Part(StrEnum):
    """Parts of a constant that are drawn anew."""

    WHOLE = "whole"
    PLACES = "places"
    """A few secret ones, none in the first eighth."""
    SLICES = "slices"
    """Some, not the first."""


def parts(num_sets: int) -> list[Part]:
    """The part for each of `num_sets` sets, in random order."""
    made = [Part.PLACES, Part.WHOLE] if random.random() < 0.5 else [Part.WHOLE, Part.PLACES]
    made += [random.choice((Part.SLICES, Part.WHOLE)) for _ in range(num_sets - len(made))]
    made = made[:num_sets]
    random.shuffle(made)
    return made


def redraw(
    value: torch.Tensor,
    earlier: torch.Tensor | None,
    *,
    variant: str,
    edges: Edges | None = None,
    part: Part = Part.WHOLE,
) -> torch.Tensor:
    """A new tensor for a discrete `value`; the same where there is no other.

    Args:
        value: as the problem gives it.
        earlier: its value for another set, by which a constant is recognised; None if unknown.
        edges: plants edge values; None plants none.
        part: of a constant, to be drawn anew.
    """
    if not value.numel() or value.is_complex():
        return value
    is_drawn = earlier is not None and (
        earlier.shape != value.shape or not torch.equal(earlier, value)
    )
    if value.numel() == 1 and not value.is_floating_point():
        return value if is_drawn or part is not Part.WHOLE else _single(value)
    if is_drawn and value.dtype is not torch.bool:
        is_label = edges is not None and not value.is_floating_point()
        return edges.labels(value) if edges is not None and is_label else value
    made = _anew(value, DENSITIES.get(variant, DENSITY))
    if part is not Part.WHOLE and not is_drawn and value.numel() > 1:
        made = _partly(value, made, part)
    is_length = edges is not None and not edges.has_indices and not value.is_floating_point()
    return _with_empty(made, value) if is_length else made


def _anew(value: torch.Tensor, density: float) -> torch.Tensor:
    if value.dtype is torch.bool:
        return _mask(value, density)
    return (_two_valued if value.is_floating_point() else _integers)(value, density)


def _partly(value: torch.Tensor, whole: torch.Tensor, part: Part) -> torch.Tensor:
    """A constant with a part of `whole`, which is it as drawn anew; `whole` where elements are not
    independent: offsets, permutations of rows."""
    chosen = _chosen(value, part)
    if _is_ordered(value):
        flat, places = value.flatten().clone(), chosen.flatten().nonzero()[:, 0]
        if len(flat.unique()) < len(flat) or not torch.equal(whole.flatten().sort().values, flat):
            return whole
        flat[places] = flat[places[torch.randperm(len(places), device=value.device)]]
        return flat.view(value.shape)
    low, high = value.min(), value.max()
    if part is Part.PLACES and _is_mask(value):
        whole = torch.where(value == high, low if low != high else torch.zeros_like(low), high)
    made = torch.where(chosen, whole, value)
    if value.ndim > 1 and _is_mask(value):  # no row loses all that it had
        lost = (value == high).any(-1) & ~(made == high).any(-1)
        made = torch.where(lost.unsqueeze(-1), value, made)
    return made


def _single(value: torch.Tensor) -> torch.Tensor:
    """The other bool; an integer from 2 to the value, where there is one for which Triton makes the
    same kernel: where the host reads it, no set may have another."""
    if value.dtype is torch.bool:
        return ~value
    given = int(value)
    is_multiple = given % MULTIPLE == 0
    lower = range(2, min(given, MAX_SINGLE))
    alike = [one for one in lower if (one % MULTIPLE == 0) == is_multiple]
    return torch.full_like(value, random.choice(alike)) if alike else value


def _is_ordered(value: torch.Tensor) -> bool:
    """True for integers that mean something together."""
    if value.dtype is torch.bool or value.is_floating_point() or bool((value == value.max()).all()):
        return False
    is_sorted = value.ndim == 1 and bool((value.diff() >= 0).all())
    is_repeated = value.ndim > 1 and bool((value == value[:1]).all())
    return is_sorted or is_repeated or len(value.unique()) == value.numel()


def _is_mask(value: torch.Tensor) -> bool:
    low, high = value.min(), value.max()
    return bool(((value == low) | (value == high)).all()) and bool((low != high) | (high == 1))


def _chosen(value: torch.Tensor, part: Part) -> torch.Tensor:
    """[shape] True at the elements of a part."""
    chosen = torch.zeros(value.shape, dtype=torch.bool, device=value.device)
    if part is Part.SLICES:
        axis = next(axis for axis, length in enumerate(value.shape) if length > 1)
        length = value.shape[axis]
        indices = torch.randperm(length - 1, device=value.device) + 1
        return chosen.index_fill_(axis, indices[: max(1, length // SLICE_SHARE)], True)
    size = value.numel()
    first = random.randint(max(1, size // 8), max(1, size // 2))
    num = min(max(MIN_PLACES, size // PLACE_SHARE), max(1, size // 8))
    chosen.view(-1)[torch.randint(first, size, (num,), device=value.device)] = True
    return chosen


def _mask(value: torch.Tensor, density: float) -> torch.Tensor:
    drawn = torch.rand(value.shape, device=value.device) < density
    had = value.any(-1) if value.ndim > 1 else value.any()
    lost = had & ~(drawn.any(-1) if value.ndim > 1 else drawn.any())
    place = torch.randint(value.shape[-1], (1,), device=value.device)
    drawn[..., place] |= lost.unsqueeze(-1)
    flat = drawn.view(-1)
    if bool(flat.all()) or not bool(flat.any()):
        flat[0] = ~flat[0]
    return drawn


def _two_valued(value: torch.Tensor, density: float) -> torch.Tensor:
    """A float of two values: the larger one at `density`. Ones are a mask without zeros; any other
    value alone moves by half of its size."""
    low, high = torch.aminmax(value)
    if value.numel() == 1:
        return _moved(value, high)
    if not bool(((value == low) | (value == high)).all()):
        return value
    if bool(low != high) or float(high) == 1.0:
        return torch.where(_mask(value == high, density), high, low if low != high else low * 0)
    return _moved(value, high)


def _moved(value: torch.Tensor, constant: torch.Tensor) -> torch.Tensor:
    change = torch.rand_like(value).mul_(2).sub_(1)
    return value + change * (constant.abs() if bool(constant != 0) else 1.0) * MOVED


def _integers(value: torch.Tensor, density: float) -> torch.Tensor:
    low, high = (int(one) for one in torch.aminmax(value))
    flat = value.flatten()
    if low == high:
        if high == 1 and value.ndim > 1:
            return _mask(value == 1, density).to(value.dtype)
        return _between(value, 1, high) if high > 1 else value
    steps = flat.diff()
    if value.ndim == 1 and len(flat) > 2 and bool((steps >= 0).all()):
        is_dense = bool((steps == 1).all())
        return _shuffled(value) if is_dense else _offsets(flat)
    if len(flat.unique()) == len(flat):
        return _shuffled(value)
    if value.ndim > 1 and bool((value == value[:1]).all()):  # one row, repeated: positions
        return torch.stack([_shuffled(row) for row in value.flatten(1)]).view(value.shape)
    return _between(value, low, high)


def _with_empty(made: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Lengths (equal values above 1) with one of 0."""
    low, high = torch.aminmax(given)
    if bool(low == high) and bool(high > 1):
        made.view(-1)[torch.randint(made.numel(), (1,), device=made.device)] = 0
    return made


def _between(value: torch.Tensor, low: int, high: int) -> torch.Tensor:
    drawn = torch.randint(low, high + 1, value.shape, device=value.device, dtype=torch.int64)
    return drawn.to(value.dtype)


def _shuffled(value: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(value.numel(), device=value.device)
    return value.flatten()[order].view(value.shape)


def _offsets(flat: torch.Tensor) -> torch.Tensor:
    """[n] sorted, with the same ends; at least 1 apart where the given ones were, and no further
    apart than those, where segments differ in length: the longest may be a size elsewhere."""
    low, high = int(flat[0]), int(flat[-1])
    gaps = flat.diff()
    least, most = int(gaps.min()), int(gaps.max())
    if least < most and most > 1:
        gaps = _exchanged(gaps, least=min(1, least), most=most)
        return torch.cat([flat[:1], flat[:1] + gaps.cumsum(0)]).to(flat.dtype)
    if least > 0:
        inner = torch.randperm(high - low - 1, device=flat.device)[: len(flat) - 2] + low + 1
    else:
        inner = torch.randint(low, high + 1, (len(flat) - 2,), device=flat.device)
    inner = inner.sort().values.to(flat.dtype)
    return torch.cat([flat[:1], inner, flat[-1:]])


def _exchanged(gaps: torch.Tensor, *, least: int, most: int) -> torch.Tensor:
    """[n] gaps in another order of which some have given a part of theirs to others."""
    made = gaps.clone()
    for _ in range(EXCHANGES):
        made = made[torch.randperm(len(made), device=made.device)]
        half = len(made) // 2
        givers, takers = made[:half], made[half : 2 * half]
        free = torch.minimum(givers - least, most - takers)
        moved = (torch.rand(half, device=made.device) * (free + 1)).to(free.dtype).minimum(free)
        givers -= moved
        takers += moved
    return made


def has_scalars(inputs: list[Any]) -> bool:
    """True if an argument is a float that can be another one."""
    return any(map(_is_scalar, inputs))


def with_other_scalars(inputs: list[Any]) -> list[Any]:
    """The same arguments with other floats; integers are sizes, axes or counts."""
    return [
        one * random.randrange(SCALAR_PARTS // 2, SCALAR_PARTS) / SCALAR_PARTS
        if _is_scalar(one)
        else one
        for one in inputs
    ]


def _is_scalar(value: Any) -> bool:
    return type(value) is float and math.isfinite(value) and value != 0
