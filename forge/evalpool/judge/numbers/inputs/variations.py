"""Changes of one tensor, and comparison of two results. Used by `examine.py`."""

from __future__ import annotations

import torch

from forge.evalpool.judge.numbers.gpu_compare import Allowed
from forge.evalpool.judge.numbers.inputs.variants import Freedom, vary_


def varied(value: torch.Tensor, name: str) -> torch.Tensor:
    """A copy in one of the judge's distributions; integers and booleans stay."""
    if value.is_floating_point():
        return vary_(value.clone(memory_format=torch.contiguous_format), name, Freedom())
    return value


def disturbed(value: torch.Tensor) -> torch.Tensor:
    """Other values of the same kind: noise of its own size; for integers the same ones in another
    order, since they may be indices."""
    if value.dtype == torch.bool:
        return value ^ (torch.rand(value.shape, device=value.device) > 0.5)
    if not value.is_floating_point():
        order = torch.randperm(value.numel(), device=value.device)
        return value.flatten()[order].view(value.shape)
    other = value.clone()
    shake(other, by=1.0)
    return other


def shake(value: torch.Tensor, *, by: float) -> None:
    """Adds noise to a floating tensor in place, `by` times its rms + 0.1."""
    if value.is_floating_point() and value.numel():
        scale = by * (value.float().square().mean().sqrt() + 0.1)
        value.add_(torch.randn_like(value) * scale)


def allowed_error(output: torch.Tensor, *, precision: str) -> torch.Tensor:
    """[shape] float64: largest accepted error of a candidate, without eager's own error."""
    if not output.is_floating_point():
        return torch.zeros_like(output, dtype=torch.float64)
    allowed = Allowed.of(output, output.new_zeros(0), precision=precision)
    whole = tuple(slice(0, size) for size in output.shape)
    return allowed.at(whole, output.double().nan_to_num(0.0, 0.0, 0.0))


def agrees(got: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor) -> bool:
    """True if each element is as near as is allowed; NaN and infinities must be the same."""
    one, other = got.double(), expected.double()
    is_special = ~torch.isfinite(other)
    is_same = (one == other) | (one.isnan() & other.isnan())
    is_near = (one - other).abs() <= allowed
    return bool(torch.where(is_special, is_same, is_near).all())


def relative(sizes: list[torch.Tensor], outputs: list[torch.Tensor]) -> float:
    """The rms of all `sizes` over that of all `outputs`."""

    def square(values: list[torch.Tensor]) -> float:
        finite = (one.double().nan_to_num(0.0, 0.0, 0.0) for one in values)
        return sum(float(one.square().sum()) for one in finite)

    whole = square(outputs)
    return (square(sizes) / whole) ** 0.5 if whole else 0.0
