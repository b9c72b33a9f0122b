# pyright: strict
"""Values of every floating type: torch computes little in the types of one byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.numbers.blocks import blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in float32 if the tensor's type is a float of one byte; else the tensor."""
    is_narrow = tensor.is_floating_point() and tensor.itemsize == 1
    return tensor.float() if is_narrow else tensor


def are_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """True if no element is NaN or infinite."""
    return all(is_finite(one) for one in tensors)


def is_finite(tensor: torch.Tensor) -> bool:
    """True if no element is NaN or infinite."""
    tensor = widened(tensor)
    if not tensor.is_floating_point() or not tensor.numel():
        return bool(torch.isfinite(tensor).all())
    least_and_largest = torch.stack(torch.aminmax(tensor))  # NaN where one is; a tenth of the time
    return bool(torch.isfinite(least_and_largest).all())


def is_any_finite(tensor: torch.Tensor) -> bool:
    """True if an element is finite, as one of the first block is in most tensors."""
    return any(bool(torch.isfinite(tensor[block]).any()) for block in blocks_of(tensor))
