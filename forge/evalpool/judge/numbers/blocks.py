# pyright: strict
"""Index ranges that cover a tensor, each of as many elements as are cheap at once, and values of
every floating type: torch computes little in those of one byte.

Used by everything that makes several passes over a tensor. On a card a block is as large as memory
allows; on a CPU it is as small as a core's cache, since a pass over fresh memory costs five times
one over memory that is at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch

CHUNK = 1 << 25
"""Elements at once on a card: their squares and differences in float64 take about 1 GB."""
CACHED = 1 << 17
"""Elements at once on a CPU: 1 MB in float64."""

Block = tuple[slice, ...]


def limit_on(device: torch.device) -> int:
    return CACHED if device.type == "cpu" else CHUNK


def blocks(shape: Sequence[int], limit: int) -> Iterator[Block]:
    """Index ranges that cover `shape`, each of at most `limit` elements, in order."""
    if math.prod(shape) <= limit or not shape:
        yield tuple(slice(0, size) for size in shape)
        return
    inner = math.prod(shape[1:])
    if inner > limit:
        for index in range(shape[0]):
            for rest in blocks(shape[1:], limit):
                yield (slice(index, index + 1), *rest)
        return
    step = max(1, limit // inner)
    for start in range(0, shape[0], step):
        yield (slice(start, min(start + step, shape[0])), *(slice(0, n) for n in shape[1:]))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in float32 if the tensor's type is a float of one byte; else the tensor."""
    is_narrow = tensor.is_floating_point() and tensor.itemsize == 1
    return tensor.float() if is_narrow else tensor


def are_finite(tensors: Iterable[torch.Tensor]) -> bool:
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
    found = blocks(tuple(tensor.shape), limit_on(tensor.device))
    return any(bool(torch.isfinite(tensor[block]).any()) for block in found)
