"""Properties of the given inputs: which may be varied, are drawn anew, or belong together.

Called by draws.py.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from forge.evalpool.judge.numbers.called import leaves, memory_order, replaced
from forge.evalpool.judge.numbers.inputs.domain import Domain, Form

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MIN_SEGMENTS = 2
"""One length is the last of its offsets by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of the given inputs that decide which freedoms there are."""

    has_non_negative: bool = False
    has_unit: bool = False
    has_discrete: bool = False

    @classmethod
    def of(cls, inputs: list[Any], domains: Mapping[int, Domain]) -> Traits:
        """The traits of the inputs of the first set, with these domains (`domains_of`)."""
        given = leaves(inputs)
        has_single = any(one.numel() == 1 and not one.is_complex() for one in given)
        tensors = [one for one in given if one.numel() > 1]
        free = [one for one in domains.values() if one.form is not Form.CATEGORICAL]
        return cls(
            has_non_negative=any(one.is_non_negative for one in free),
            has_unit=any(one.is_unit for one in free),
            has_discrete=has_single or len(domains) < len(tensors) or len(free) < len(domains),
        )


def domains_of(inputs: list[Any]) -> dict[int, Domain]:
    """Domains of the floating inputs that have more than one element, by number."""
    return {
        number: Domain.of(one)
        for number, one in enumerate(leaves(inputs))
        if one.is_floating_point() and one.numel() > 1
    }


def operands_of(inputs: list[Any], domains: Mapping[int, Domain]) -> list[int]:
    """Numbers of the continuous inputs, those with most elements first. One at a time is huge: the
    products of several would be out of every kernel's range."""
    found = [number for number, one in domains.items() if one.form is not Form.CATEGORICAL]
    given = leaves(inputs)
    return sorted(found, key=lambda number: -given[number].numel())


def discrete_alone(value: torch.Tensor, domain: Domain | None) -> torch.Tensor:
    """An input that is drawn anew and not varied, as masks, indices and single numbers are, to
    compare later ones with; nothing of a large continuous one.

    Args:
        domain: as `domains_of` has it.
    """
    if not value.numel():
        return value
    is_discrete = domain is None or domain.form is Form.CATEGORICAL
    return value.clone() if is_discrete else value.new_zeros(0)


def orders_of(inputs: list[Any]) -> dict[int, tuple[int, ...]]:
    """Orders of memory of the inputs that are not contiguous, by number."""
    found = {number: memory_order(one) for number, one in enumerate(leaves(inputs))}
    return {number: order for number, order in found.items() if order is not None}


def own_memory(value: Any, taken: dict[int, ref[torch.Tensor]]) -> Any:
    """The same with every tensor contiguous and in memory of its own: it will be written over.

    Args:
        taken: earlier inputs by the address of their memory, to which these are added. A tensor
            that a problem makes once, and gives in each draw, is in the memory of the first set's.
    """

    def visit(_: int, one: torch.Tensor) -> torch.Tensor:
        address = one.untyped_storage().data_ptr()
        is_taken = address in taken and taken[address]() is not None
        if is_taken or one.requires_grad:
            return one.detach().clone(memory_format=torch.contiguous_format)
        taken[address] = ref(one)
        return one.contiguous()

    return replaced(value, visit)


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
