"""Copies of tensors on the made-up card, as `copy.deepcopy(layer)` makes them.

Put in place by `stage.py`. Torch's own methods take the storage apart, and fake tensors have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor


def deep_copy(tensor: FakeTensor, memo: dict[int, Any]) -> Any:
    """A tensor of its own with the same content; a parameter of a parameter. A tensor that occurs
    twice in what is copied is copied once; one that shares memory with another does so no more."""
    if id(tensor) not in memo:
        made: Any = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = made
    return memo[id(tensor)]


def shallow_copy(tensor: FakeTensor) -> torch.Tensor:
    """A tensor over the same memory."""
    return tensor.detach()
