"""Equal values planted into inputs: random ones are hardly ever equal.

Called by edges.py: within a tensor where the reference compares tensors (a maximum that occurs
twice, a rank), and at the jumps of what rounds an input.
"""

from __future__ import annotations

import math
import random

import torch

LINE_SHARE = 8
"""One line in so many gets equal values, along each axis."""
MIN_LINES = 6
"""At least so many lines, two of each kind."""
MAX_ELEMENTS = 1 << 20
"""Elements of all lines along one axis that are looked at."""
NEXT_SHARE = 0.5
"""Share of the lines in which equal values are neighbours."""
PAIR_SHARE = 16
"""One pair of equal integers for so many."""
MAX_CHANCE = 0.01
"""Chance below which independent indices are not all different."""
NUM_STEPS = 4
"""Jumps of a rounding on each side of 0."""


def plant_ties_(value: torch.Tensor) -> torch.Tensor:
    """Repeats the largest, the least or any element of some lines along each axis, and of the whole
    tensor, at another place of the line. Written in place; `value` must be contiguous."""
    lines = [value.movedim(axis, -1) for axis in range(value.ndim)]
    for one in [*lines, value.view(-1)] if value.ndim > 1 else lines:
        if one.shape[-1] > 1:
            _repeat_in(one)
    return value


def _repeat_in(lines: torch.Tensor) -> None:
    """[..., length] a view."""
    length, num = lines.shape[-1], lines.shape[:-1].numel()
    count = max(1, min(max(num // LINE_SHARE, MIN_LINES), num, MAX_ELEMENTS // length))
    rows = torch.unravel_index(
        torch.randint(num, (count,), device=lines.device), lines.shape[:-1] or (1,)
    )
    if lines.ndim == 1:
        lines = lines.unsqueeze(0)
    chosen = lines[rows]
    places = torch.stack(
        [
            chosen.argmax(-1),
            chosen.argmin(-1),
            torch.randint(length, (count,), device=lines.device),
        ]
    )
    kinds = (torch.arange(count, device=lines.device) + random.randrange(3)) % len(places)
    source = places.gather(0, kinds.unsqueeze(0))[0]
    distance = torch.randint(1, length, (count,), device=lines.device)
    distance[torch.rand(count, device=lines.device) < NEXT_SHARE] = 1
    lines[(*rows, (source + distance) % length)] = lines[(*rows, source)]


def jumps(unit: float, *, signs: bool) -> list[float]:
    """Multiples of a half of `unit`, at which a function that rounds to multiples of it jumps."""
    first = -2 * NUM_STEPS if signs else 0
    return [number * unit / 2 for number in range(first, 2 * NUM_STEPS + 1)]


def are_different(value: torch.Tensor, *, is_likely: bool) -> bool:
    """True for indices of which no line along the last axis has one twice, by design rather than by
    chance: a kernel may rely on it.

    Args:
        is_likely: the problem draws permutations: nothing speaks for chance.
    """
    length = value.shape[-1] if value.ndim else 1
    if value.numel() < 2 or length < 2:
        return False
    lines = value.reshape(-1, length).sort(-1).values
    if bool((lines.diff(dim=-1) == 0).any()):
        return False
    num_places = int(lines.max()) - min(0, int(lines.min())) + 1
    chance = math.exp(-len(lines) * length * (length - 1) / (2 * num_places))
    return is_likely or chance < MAX_CHANCE


def repeat_places_(value: torch.Tensor) -> torch.Tensor:
    """Integers of which some occur twice along each axis, written in place: of a pair, the lower
    one. A permutation stays, and so does what is sorted: offsets."""
    if value.numel() < 2:
        return value
    flat = value.view(-1)
    is_dense = int(flat.max()) - int(flat.min()) == len(flat) - 1
    is_sorted = value.ndim == 1 and bool((flat.diff() >= 0).all())
    if is_sorted or (is_dense and len(flat.unique()) == len(flat)):
        return value
    for axis, length in enumerate(value.shape):
        lines = value.movedim(axis, -1)
        for first, second in (
            torch.randperm(length)[: length // 2 * 2]
            .view(-1, 2)[: max(1, length // PAIR_SHARE)]
            .tolist()
        ):
            lower = torch.minimum(lines[..., first], lines[..., second])
            lines[..., first] = lower
            lines[..., second] = lower
    return value
