"""Properties of the inputs that a problem gives: which may be varied, which are drawn anew.

Called by draws.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from forge.evalpool.judge.numbers.called import leaves, memory_order, replaced
from forge.evalpool.judge.numbers.inputs.domain import Domain, Form

if TYPE_CHECKING:
    from collections.abc import Mapping


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
