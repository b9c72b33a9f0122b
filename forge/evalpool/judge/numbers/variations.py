"""Changing one tensor among nested inputs, and comparing what comes out. Used by `examine.py`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.numbers import compare
from forge.evalpool.judge.numbers.called import Unjudgeable
from forge.evalpool.judge.numbers.input_sets import VARIANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a nested value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)


def replaced(value: Any, change: Callable[[int, torch.Tensor], torch.Tensor]) -> Any:
    """The same with every tensor changed; `change` gets its place in the order."""
    numbers = itertools.count()

    def visit(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return change(next(numbers), value)
        if isinstance(value, list | tuple):
            items = [visit(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {key: visit(item) for key, item in value.items()}
        return value

    return visit(value)


def flatten(result: Any) -> list[torch.Tensor]:
    """The tensors that a reference returns. Raises Unjudgeable for anything else."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [leaf for item in result for leaf in flatten(item)]
    raise Unjudgeable(f"the reference returns a {type(result).__name__}; tensors are judged")


def vary(value: torch.Tensor, name: str) -> torch.Tensor:
    """One of the judge's distributions; integers and booleans stay."""
    if value.is_floating_point():
        return VARIANTS[name](value.float()).to(value.dtype)
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
    """Largest accepted error of a candidate, element by element, without eager's own error."""
    wide = output.double()
    if not output.is_floating_point():
        return torch.zeros_like(wide)
    finite = wide[torch.isfinite(wide)]
    rms = finite.square().mean().sqrt() if finite.numel() else wide.new_zeros(())
    return compare.tolerance(dtype_of(output), precision) * (rms + wide.abs())


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


def dtype_of(tensor: torch.Tensor) -> str:
    """`float32`."""
    return str(tensor.dtype).removeprefix("torch.")
