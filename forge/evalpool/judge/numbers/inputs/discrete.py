"""Booleans, integers and two-valued floats drawn anew within their meaning.

Called by input_sets.py for every set but the given one. What the problem itself draws anew stays
as it was drawn; a constant is replaced:

    booleans           at a density of the set's own; rows that had one that is true keep one
    two-valued floats  the same with their two values; ones get zeros
    constant floats    moved by about half of their size: states of zeros, a single scale
    all different      in another order: positions, a permutation
    sorted             other sorted values between the same ends: offsets, segment ids
    equal values       from 1 to the value: lengths; ones of two axes or more: a mask
    other integers     over the range of the given ones: indices, labels

Nothing leaves the range of the given values: on a GPU an index outside ends the process. But edge
values do (edges.py) where no integer can be an index: a length of 0, negative numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from forge.evalpool.judge.numbers.inputs.edges import Edges

DENSITIES = {"spiked": 0.5, "unlike": 0.15, "near_one": 0.9}
"""Shares of true values, by variant; DENSITY for any other."""
DENSITY = 0.7
MOVED = 0.85
"""Largest relative change of a float that is the same everywhere (of zeros, absolute)."""


def redraw(
    value: torch.Tensor, earlier: torch.Tensor | None, *, variant: str, edges: Edges | None = None
) -> torch.Tensor:
    """A new tensor for a discrete `value`; the same where there is no other.

    Args:
        value: as the problem gives it.
        earlier: its value for another set, by which a constant is recognised; None if unknown.
        edges: plants edge values; None plants none.
    """
    if not value.numel() or value.is_complex():
        return value
    if value.numel() == 1 and not value.is_floating_point():
        return value
    if value.dtype is torch.bool:
        return _mask(value, DENSITIES.get(variant, DENSITY))
    is_drawn = earlier is not None and (
        earlier.shape != value.shape or not torch.equal(earlier, value)
    )
    if is_drawn:
        is_label = edges is not None and not value.is_floating_point()
        return edges.labels(value) if edges is not None and is_label else value
    if value.is_floating_point():
        return _two_valued(value, DENSITIES.get(variant, DENSITY))
    made = _integers(value, DENSITIES.get(variant, DENSITY))
    return _with_empty(made, value) if edges is not None and not edges.has_indices else made


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
    """[n] sorted, with the same ends; at least 1 apart where the given ones were."""
    low, high = int(flat[0]), int(flat[-1])
    if bool((flat.diff() > 0).all()):
        inner = torch.randperm(high - low - 1, device=flat.device)[: len(flat) - 2] + low + 1
    else:
        inner = torch.randint(low, high + 1, (len(flat) - 2,), device=flat.device)
    inner = inner.sort().values.to(flat.dtype)
    return torch.cat([flat[:1], inner, flat[-1:]])
