"""Honest answers without writing them: torch's operations in another order of summation.

Within `OtherOrder`, reductions, products, convolutions and norms are computed in the same type from
flipped operands, norms by one pass in blocks, exponentials through base 2 as Triton's are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
BLOCK = 24
LOG2_E = 1.4426950408889634


class OtherOrder(TorchDispatchMode):
    """Another kernel's rounding, for whatever runs within."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        other = OTHERS.get(func)
        return other(*args, **(kwargs or {})) if other else func(*args, **(kwargs or {}))


def blocked_sum(x: torch.Tensor, dims: list[int], keepdim: bool = False) -> torch.Tensor:
    """Partial sums of blocks, the last first, along the last of `dims`; then the others."""
    dims = sorted(d % x.ndim for d in dims)
    for d in reversed(dims):
        parts = [part.sum(d, keepdim=True) for part in x.split(BLOCK, d)]
        total = parts[-1]
        for part in reversed(parts[:-1]):
            total = total + part
        x = total
    return x if keepdim else x.reshape([n for d, n in enumerate(x.shape) if d not in dims])


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _sum(x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if not x.is_floating_point() or x.ndim == 0 or not x.numel():
        return x.sum(dims, keepdim, dtype=dtype) if dims is not None else x.sum(dtype=dtype)
    chosen = list(range(x.ndim)) if not dims else list(dims)
    return blocked_sum(_wide(x), chosen, keepdim).to(dtype or x.dtype)


def _mean(x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    chosen = list(range(x.ndim)) if not dims else list(dims)
    num = math.prod(x.shape[d] for d in chosen)
    wide = _wide(x)
    return (blocked_sum(wide * (1 / num), chosen, keepdim)).to(dtype or x.dtype)


def _mm(a: Any, b: Any) -> Any:
    return _product(a, b)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = None
    for one, other in zip(reversed(a.split(BLOCK, -1)), reversed(b.split(BLOCK, -2)), strict=True):
        part = _wide(one).contiguous() @ _wide(other).contiguous()
        out = part if out is None else out + part
    assert out is not None
    return out.to(a.dtype)


def _addmm(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return (_wide(_product(a, b)) * alpha + _wide(c) * beta).to(a.dtype)


def _convolution(x: Any, w: Any, bias: Any, *rest: Any) -> Any:
    is_transposed, groups = rest[3], rest[5]
    if groups == 1 and not is_transposed:
        x, w = x.flip(1), w.flip(1)
    out = torch.convolution(_wide(x), _wide(w), None, *rest)
    if bias is not None:
        out = out + _wide(bias).view(1, -1, *([1] * (out.ndim - 2)))
    return out.to(x.dtype)


def _exp(x: torch.Tensor) -> torch.Tensor:
    return torch.exp2(_wide(x) * LOG2_E).to(x.dtype)


def _softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    wide = _wide(x)
    powers = _exp(wide - wide.amax(dim, keepdim=True))
    return (powers / blocked_sum(powers, [dim], keepdim=True)).to(x.dtype)


def _log_softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    wide = _wide(x)
    most = wide.amax(dim, keepdim=True)
    return (wide - most - blocked_sum(_exp(wide - most), [dim], keepdim=True).log()).to(x.dtype)


def _moments(x: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    num = math.prod(x.shape[d] for d in dims)
    mean = blocked_sum(x, dims, keepdim=True) / num
    var = blocked_sum((x - mean).square(), dims, keepdim=True) / num
    return mean, var


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    wide = _wide(x)
    dims = list(range(x.ndim - len(shape), x.ndim))
    mean, var = _moments(wide, dims)
    scale = (var + eps).rsqrt()
    out = (wide - mean) * scale
    out = out if weight is None else out * _wide(weight)
    out = out if bias is None else out + _wide(bias)
    return out.to(x.dtype), mean, scale


def _group_norm(
    x: Any, weight: Any, bias: Any, n: int, c: int, size: int, groups: int, eps: float
) -> Any:
    wide = _wide(x).reshape(n, groups, -1)
    mean, var = _moments(wide, [2])
    scale = (var + eps).rsqrt()
    out = ((wide - mean) * scale).view(x.shape)
    shape = [1, c] + [1] * (x.ndim - 2)
    out = out if weight is None else out * _wide(weight).view(shape)
    out = out if bias is None else out + _wide(bias).view(shape)
    return out.to(x.dtype), mean.view(n, groups), scale.view(n, groups)


def _batch_norm(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, *rest: Any
) -> Any:
    is_training, _, eps = rest
    shape = [1, -1] + [1] * (x.ndim - 2)
    if is_training:
        dims = [d for d in range(x.ndim) if d != 1]
        mean, var = _moments(_wide(x), dims)
    else:
        mean, var = running_mean.view(shape), running_var.view(shape)
    scale = (var + eps).rsqrt()
    if weight is not None:
        scale = scale * weight.view(shape)
    shift = -mean * scale if bias is None else bias.view(shape) - mean * scale
    out = (_wide(x) * scale + shift).to(x.dtype)
    return out, mean.flatten(), scale.flatten()


def _cumsum(x: Any, dim: int, *, dtype: Any = None) -> Any:
    if not x.is_floating_point():
        return x.cumsum(dim, dtype=dtype)
    total, parts = None, []
    for part in _wide(x).split(BLOCK, dim):
        here = part.cumsum(dim)
        parts.append(here if total is None else here + total)
        last = here.narrow(dim, here.shape[dim] - 1, 1)
        total = last if total is None else total + last
    return torch.cat(parts, dim).to(x.dtype)


def _cumprod(x: Any, dim: int, *, dtype: Any = None) -> Any:
    total, parts = None, []
    for part in _wide(x).split(BLOCK, dim):
        here = part.cumprod(dim)
        parts.append(here if total is None else here * total)
        last = here.narrow(dim, here.shape[dim] - 1, 1)
        total = last if total is None else total * last
    return torch.cat(parts, dim).to(x.dtype)


def _prod(x: Any, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return x.flip(dim).prod(dim, keepdim)


def _norm(
    x: Any, order: float = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    chosen = list(range(x.ndim)) if dims is None else list(dims)
    if order == 2:
        return blocked_sum(_wide(x).square(), chosen, keepdim).sqrt().to(x.dtype)
    if order == 1:
        return blocked_sum(_wide(x).abs(), chosen, keepdim).to(x.dtype)
    return torch.linalg.vector_norm(x, order, dims, keepdim)


OTHERS = {
    aten.sum.dim_IntList: _sum,
    aten.sum.default: _sum,
    aten.mean.dim: _mean,
    aten.mean.default: _mean,
    aten.mm.default: _mm,
    aten.bmm.default: _mm,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _addmm,
    aten.convolution.default: _convolution,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _log_softmax,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.native_batch_norm.default: _batch_norm,
    aten.cumsum.default: _cumsum,
    aten.cumprod.default: _cumprod,
    aten.prod.dim_int: _prod,
    aten.linalg_vector_norm.default: _norm,
    aten.exp.default: _exp,
    aten.silu.default: lambda x: (_wide(x) / (1 + _exp(-_wide(x)))).to(x.dtype),
    aten.sigmoid.default: lambda x: (1 / (1 + _exp(-_wide(x)))).to(x.dtype),
    aten.tanh.default: lambda x: (2 / (1 + _exp(-2 * _wide(x))) - 1).to(x.dtype),
}
"""By operation: the same in another order."""
