"""flash-attn's varlen function over torch's own kernel, for `bench/trainers.py`: TRL would fetch
the package from the hub. torch 2.10 and later on CUDA; elsewhere SDPA, a sequence at a time."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:
    """Causal attention of each sequence to its own keys, aligned at the end. [T, H, D]"""
    assert causal
    assert window_size == (-1, -1), "no model here has windows"
    if not q.is_cuda:
        return _each(q, k, v, cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), softmax_scale)
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {}
    known = _options()
    if "window_size" in known:
        options["window_size"] = (-1, 0)
    else:
        options["is_causal"] = True
    if "scale" in known:
        options["scale"] = softmax_scale
    if "enable_gqa" in known:
        options["enable_gqa"] = True
    else:
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    attend: Any = varlen_attn
    return attend(
        q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), **options
    )


@cache
def _options() -> frozenset[str]:
    """Of this torch's kernel; earlier ones know fewer."""
    from torch.nn.attention.varlen import varlen_attn

    return frozenset(inspect.signature(varlen_attn).parameters)


def _each(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_ends: list[int],
    k_ends: list[int],
    scale: float | None,
) -> torch.Tensor:
    found = []
    for i in range(len(q_ends) - 1):
        rows = [x[a:b].transpose(0, 1) for x, a, b in (
            (q, q_ends[i], q_ends[i + 1]),
            (k, k_ends[i], k_ends[i + 1]),
            (v, k_ends[i], k_ends[i + 1]),
        )]  # fmt: skip
        num_q, num_k = rows[0].size(1), rows[1].size(1)
        mask = torch.ones(num_q, num_k, dtype=torch.bool).tril(diagonal=num_k - num_q)
        out = scaled_dot_product_attention(
            *(x[None] for x in rows), attn_mask=mask, scale=scale, enable_gqa=True
        )
        found.append(out[0].transpose(0, 1))
    return torch.cat([*found, q.new_zeros(len(q) - q_ends[-1], *q.shape[1:])])
