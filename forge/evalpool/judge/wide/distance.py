"""How far two results are from each other.

Called by sets.py, which asks what a plant or another rounding changes.
"""

from __future__ import annotations

import math

import torch

from forge.evalpool.judge.numbers.blocks import CHUNK, widened
from forge.evalpool.judge.wide.compare import BLOCK_ELEMENTS, LEAST_SCALE, SAME


def largest(tensor: torch.Tensor) -> float:
    """The largest magnitude of a floating tensor, NaN if an element is; 0 of another one."""
    if not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    low, high = torch.stack(torch.aminmax(widened(tensor))).tolist()
    return max(-low, high)


def is_copy(output: torch.Tensor, one: torch.Tensor) -> bool:
    """True if an output is an input, whatever its shape."""
    is_alike = (output.numel(), output.dtype) == (one.numel(), one.dtype)
    return is_alike and distance(output, one.reshape(output.shape)) <= SAME


def distance(
    one: torch.Tensor, other: torch.Tensor, *, by_row: bool = True, enough: float = math.inf
) -> float:
    """The largest difference of two results, relative to |one| + the rms of all (of the row, where
    asked, at least LEAST_SCALE of all); infinite where one alone is not finite, or an integer
    differs. The first one above `enough` will do."""
    if one.shape != other.shape:
        return math.inf
    if not one.numel():
        return 0.0
    if not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else math.inf
    if one.numel() >= CHUNK and torch.equal(one, other):
        return 0.0
    length = one.shape[-1] if one.ndim else 1
    rows, others = (widened(each).reshape(-1, length) for each in (one, other))
    if not math.isfinite(float(torch.linalg.vector_norm(rows, dtype=torch.float64))):
        rows, others = _with_equal_ones(rows, others)
    whole = float(torch.linalg.vector_norm(rows, dtype=torch.float64)) / math.sqrt(rows.numel())
    tiny = torch.finfo(torch.float64).tiny
    scales = rows.new_full((len(rows), 1), max(whole, tiny), dtype=torch.float64)
    if by_row:
        norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float64)
        scales = norms.div_(math.sqrt(length)).clamp_(min=max(whole * LEAST_SCALE, tiny))
    limit = BLOCK_ELEMENTS if one.device.type == "cpu" else CHUNK
    found, step = 0.0, max(1, limit // length)
    for start in range(0, len(rows), step):
        first = rows[start : start + step].double()
        difference = (first - others[start : start + step]).abs_()
        ratio = float(difference.div_(first.abs().add_(scales[start : start + step])).max())
        found = math.inf if math.isnan(ratio) else max(found, ratio)
        if found > enough:
            break
    return found


def _with_equal_ones(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results with zeros where both are the same and not finite; NaN where one alone is."""
    is_same = ((one == other) | (one.isnan() & other.isnan())) & ~one.isfinite()
    is_bad = ~is_same & ~(one.isfinite() & other.isfinite())
    first = one.masked_fill(is_same | is_bad, 0.0)
    return first, other.masked_fill(is_same, 0.0).masked_fill(is_bad, math.nan)
