"""Operations of torch written so that they bear symbolic sizes and leave no library call."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

NUMBERS = ("groups", "num_groups", "num_heads", "padding_idx", "kernel_size", "stride", "dilation")
"""Attributes of modules that are no sizes, whatever their values are."""
SMALL = 16
"""Largest attribute that is taken for no size."""


def plain_operations(stack: contextlib.ExitStack) -> None:
    """Replaces operations until the stack is left."""
    stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
    stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    stack.callback(torch.backends.mha.set_fastpath_enabled, is_fast)
    for function in (_layer_norm, _instance_norm, _max_pool1d, _interpolate, _relu6, _linear):
        name = function.__name__.removeprefix("_")
        stack.enter_context(mock.patch.object(functional, name, function))


def _layer_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    shape = input.shape[-len(normalized_shape) :]
    return torch.layer_norm(input, shape, weight, bias, eps, False)


def _instance_norm(
    input: torch.Tensor, running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None, weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    ones = [1] * (input.dim() - 2)
    if use_input_stats or running_mean is None or running_var is None:
        axes = list(range(2, input.dim()))
        var, mean = torch.var_mean(input, axes, correction=0, keepdim=True)
    else:
        mean, var = running_mean.view(1, -1, *ones), running_var.view(1, -1, *ones)
    made = (input - mean) * torch.rsqrt(var + eps)
    if weight is not None:
        made = made * weight.view(1, -1, *ones)
    return made if bias is None else made + bias.view(1, -1, *ones)


def _max_pool1d(
    input: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    def pair(value: Any, other: int) -> tuple[int, int]:
        return other, value[0] if isinstance(value, tuple | list) else value

    steps = pair(kernel_size if stride is None or stride == [] else stride, 1)
    values, indices = torch.ops.aten.max_pool2d_with_indices(
        input.unsqueeze(-2), pair(kernel_size, 1), steps, pair(padding, 0), pair(dilation, 1),
        ceil_mode,
    )  # fmt: skip
    if return_indices:
        return values.squeeze(-2), indices.squeeze(-2)
    return values.squeeze(-2)


LINEAR = functional.linear


def _linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """More axes than two are rows: torch's own way asks for their lengths as numbers."""
    if input.dim() < 3:
        return LINEAR(input, weight, bias)
    rows = LINEAR(input.reshape(-1, input.shape[-1]), weight, bias)
    return rows.view(*input.shape[:-1], weight.shape[0])


INTERPOLATE = functional.interpolate


def _interpolate(
    input: torch.Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    *rest: Any, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """Nearest neighbours at a whole factor are copies; their places take fp64 otherwise."""
    rank = input.dim() - 2
    factors = scale_factor if isinstance(scale_factor, list | tuple) else [scale_factor] * rank
    if mode != "nearest" or size is not None or not all(_is_whole(one) for one in factors):
        return INTERPOLATE(input, size, scale_factor, mode, *rest, **options)
    made = input
    for axis, factor in enumerate(factors, start=2):
        made = made.unsqueeze(axis + 1)
        sizes = [*made.shape]
        sizes[axis + 1] = int(factor)
        made = made.expand(sizes).flatten(axis, axis + 1)
    return made


def _is_whole(factor: Any) -> bool:
    return isinstance(factor, int | float) and factor >= 1 and factor == int(factor)


def _relu6(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return functional.hardtanh(input, 0.0, 6.0, inplace)


def attributes(
    model: torch.nn.Module, new: dict[int, Any]
) -> list[tuple[dict[str, Any], str, Any]]:
    """Numbers that modules keep and that are lengths of their parameters, as symbols.

    Args:
        model: The model; none of its attributes change.
        new: Tensors with symbolic sizes, by the identity of the model's own.
    """
    found: list[tuple[dict[str, Any], str, Any]] = []
    every = _lengths(model, new)
    for owner in model.modules():
        own = _lengths(owner, new)
        for name, value in owner.__dict__.items():
            if type(value) is int and value > SMALL and name not in NUMBERS:
                symbol = own.get(value, every.get(value))
                if symbol is not None:
                    found.append((owner.__dict__, name, symbol))
    return found


def _lengths(owner: torch.nn.Module, new: dict[int, Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for one in [*owner.parameters(), *owner.buffers()]:
        if id(one) in new:
            for length, symbol in zip(one.shape, new[id(one)].shape, strict=True):
                if isinstance(symbol, torch.SymInt):
                    found.setdefault(int(length), symbol)
    return found
