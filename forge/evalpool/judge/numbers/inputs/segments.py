"""Inputs about segments of unlike length that are drawn anew together: offsets, lengths, numbers.

Called by draws.py.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_SEGMENTS = 2
"""One length is the last of its offsets by chance."""


def related(given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Replacements, by number, for inputs that no longer belong together as the given ones did.

    Lengths of segments follow their offsets: segments that overlap would make a race of every
    kernel that writes them side by side. Integers that are equal within each segment, such as its
    number, stay so.

    Args:
        given: inputs as the problem gives them.
        made: the same, drawn anew.
    """
    found = _lengths_by_offsets(given, made)
    changed = [
        (one, found.get(at, made[at]))
        for at, one in enumerate(given)
        if _are_segments(one) and not torch.equal(one, found.get(at, made[at]))
    ]
    followers = [number for number, one in enumerate(given) if _is_alike_by_rows(one)]
    for number, (offsets, drawn) in itertools.product(followers, changed):
        one = given[number]
        before, after = (_bounds(at, end=len(one)) for at in (offsets, drawn))
        if number in found or before is None or after is None:
            continue
        if one is not offsets and _is_alike_within(one, before):
            rows = one[before[:-1].clamp(max=len(one) - 1)]
            found[number] = rows.repeat_interleave(after.diff(), 0)
    return found


def _bounds(offsets: torch.Tensor, *, end: int) -> torch.Tensor | None:
    """[segments + 1] their begins and the end of the last one; None if these are no offsets."""
    bounds = offsets.long()
    if int(bounds[0]) != 0:
        bounds = torch.cat((bounds.new_zeros(1), bounds))
    if int(bounds[-1]) < end:
        bounds = torch.cat((bounds, bounds.new_tensor([end])))
    gaps = bounds.diff()
    is_good = int(bounds[-1]) == end and int(gaps.min()) >= 0 and int(gaps.max()) > 1
    return bounds if is_good and len(bounds) > MIN_SEGMENTS else None


def _is_alike_by_rows(value: torch.Tensor) -> bool:
    """True for integers of which several rows behind each other are equal, and not all."""
    if value.dtype not in (torch.int32, torch.int64) or not value.ndim or len(value) < 3:
        return False
    differs = (value[1:] != value[:-1]).reshape(len(value) - 1, -1).any(-1)
    return bool(differs.any()) and not bool(differs.all())


def _is_alike_within(value: torch.Tensor, bounds: torch.Tensor) -> bool:
    """True if rows are equal in each segment: numbers of segments, places that belong to them."""
    differs = (value[1:] != value[:-1]).reshape(len(value) - 1, -1).any(-1)
    inner = bounds[(bounds > 0) & (bounds < len(value))]
    differs[inner - 1] = False
    return not bool(differs.any())


def _lengths_by_offsets(
    given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
) -> dict[int, torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    numbers = [number for number, one in enumerate(given) if _are_segments(one)]
    for at, lengths_at in itertools.permutations(numbers, 2):
        offsets, lengths = given[at], given[lengths_at]
        total = int(lengths.sum())
        if lengths_at in found or not _belongs(offsets, lengths, total=total):
            continue
        if not _belongs(made[at], made[lengths_at], total=total):
            is_sorted = bool((made[at].diff() >= 0).all())
            chosen = made[at] if is_sorted else offsets
            found[at] = chosen
            found[lengths_at] = _gaps(chosen, offsets, len(lengths), total=total).to(lengths.dtype)
    return found


def _are_segments(value: torch.Tensor) -> bool:
    is_integer = value.dtype in (torch.int32, torch.int64)
    return is_integer and value.ndim == 1 and len(value) >= MIN_SEGMENTS


def _belongs(offsets: torch.Tensor, lengths: torch.Tensor, *, total: int) -> bool:
    """True for where segments of these lengths begin, end, or both."""
    if len(offsets) - len(lengths) not in (0, 1) or bool((lengths < 0).any()):
        return False
    if int(lengths.max()) <= 1:  # positions, and a mask
        return False
    gaps = _gaps(offsets, offsets, len(lengths), total=total)
    is_from_zero = int(offsets[0]) in (0, int(lengths[0]))
    return is_from_zero and torch.equal(gaps.long(), lengths.long())


def _gaps(
    offsets: torch.Tensor, given: torch.Tensor, num_segments: int, *, total: int
) -> torch.Tensor:
    """[num_segments] lengths between offsets, of the kind of the given ones."""
    end = offsets.new_tensor([total])
    if len(offsets) > num_segments:
        return offsets.diff()
    if int(given[0]) == 0:
        return torch.cat((offsets, end)).diff()
    return torch.cat((end * 0, offsets)).diff()
