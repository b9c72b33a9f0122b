"""One call of a reference and what it left: outputs, inputs changed in place.

Called by the oracle. Imports nothing of a problem; everything is run on copies, since a reference
may work in place.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch


class Unjudgeable(Exception):
    """The problem's reference cannot be run or described."""


@dataclass(slots=True, kw_only=True)
class Called:
    """One call of the reference, on copies: it may work in place."""

    outputs: list[torch.Tensor]
    before: list[torch.Tensor]
    after: list[torch.Tensor]
    """The tensors among the inputs."""
    form: str

    def changed(self) -> list[int]:
        pairs = enumerate(zip(self.before, self.after, strict=True))
        return [number for number, (old, new) in pairs if not is_equal(old, new)]

    def results(self, changed: list[int] | None = None) -> list[torch.Tensor]:
        """The outputs, then the inputs that were changed."""
        numbers = self.changed() if changed is None else changed
        return [*self.outputs, *(self.after[number] for number in numbers)]


def call(model: Any, inputs: list[Any]) -> Called:
    given = copy.deepcopy(inputs)
    result = copy.deepcopy(model)(*given)
    return Called(
        outputs=flatten(result),
        before=leaves(inputs),
        after=leaves(given),
        form="tensor" if isinstance(result, torch.Tensor) else "list",
    )


def flatten(result: Any) -> list[torch.Tensor]:
    if result is None:
        return []
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [leaf for item in result for leaf in flatten(item)]
    raise Unjudgeable(f"the reference returns a {type(result).__name__}; tensors are judged")


def leaves(value: Any) -> list[torch.Tensor]:
    """Its tensors, in the order of `Describer.tree`."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    return [leaf for item in items for leaf in leaves(item)] if _has_items(value) else []


def _has_items(value: Any) -> bool:
    return isinstance(value, list | tuple | dict)


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) or torch.equal(one.nan_to_num(), other.nan_to_num())


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
