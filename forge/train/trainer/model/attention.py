"""Causal attention of a row of packed sequences, each to its own keys: torch's flash kernel on
CUDA, SDPA one sequence at a time elsewhere. Needs torch 2.10 or later, no other kernels.

Called by transformers' models. `grpo.microbatches` packs the rows.

Shapes: B batch, H heads, T tokens, D size of a head, N tokens of a row, S sequences.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface

ATTENTION = "forge_prefixes"
"""Name of this attention in a model's config. Inputs that are not packed get causal SDPA."""


def register_attention() -> None:
    """Register `ATTENTION` with transformers."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    prefix_keys: torch.Tensor | None = None,
    prefix_ends_q: torch.Tensor | None = None,
    prefix_ends_k: torch.Tensor | None = None,
    prefix_max_q: int = 0,
    prefix_max_k: int = 0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: [B, H, T, D] in, [B, T, H, D] out.

    The `prefix_` arguments are those of `PrefixRow`."""
    if prefix_keys is None or prefix_ends_q is None or prefix_ends_k is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    assert kwargs.get("sliding_window") is None, "refused before the start: forge.train.refusals"
    # Under autocast norms and rotations return f32, which the kernel does not accept.
    is_mixed = query.is_cuda and torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda") if is_mixed else query.dtype
    query_NHD, key_NHD, value_NHD = (x[0].transpose(0, 1).to(dtype) for x in (query, key, value))
    out_NHD = _attend_to_own_keys(
        query_NHD,
        key_NHD.index_select(0, prefix_keys),
        value_NHD.index_select(0, prefix_keys),
        ends_q=prefix_ends_q,
        ends_k=prefix_ends_k,
        max_q=prefix_max_q,
        max_k=prefix_max_k,
        scale=scaling,
    )
    return out_NHD[None], None


def _attend_to_own_keys(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    ends_q: torch.Tensor,
    ends_k: torch.Tensor,
    max_q: int,
    max_k: int,
    scale: float | None,
) -> torch.Tensor:
    """Attention of each sequence's queries, which are its last tokens, to all its keys. [N, H, D]

    `ends_q` are the start of each sequence's queries and the end of the last, `max_q` the most
    queries of a sequence; `ends_k` and `max_k` the same for keys. [S + 1]"""
    if not q.is_cuda:
        return _each(q, k, v, ends_q.tolist(), ends_k.tolist(), scale)
    from torch.nn.attention.varlen import varlen_attn

    known, attend = _options(), varlen_attn
    options: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {}
    if not options:
        options["is_causal"] = True
    if "scale" in known:
        options["scale"] = scale
    if "enable_gqa" in known:
        options["enable_gqa"] = True
    else:
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    found: Any = attend(q, k, v, ends_q, ends_k, max_q, max_k, **options)
    return found


@cache
def _options() -> frozenset[str]:
    """Parameters of this torch version's kernel; earlier versions have fewer."""
    from torch.nn.attention.varlen import varlen_attn

    return frozenset(inspect.signature(varlen_attn).parameters)


def _each(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ends_q: list[int],
    ends_k: list[int],
    scale: float | None,
) -> torch.Tensor:
    """The same by SDPA. Rows after the last query are zeros."""
    found = []
    for i in range(len(ends_q) - 1):
        q_HTD = q[ends_q[i] : ends_q[i + 1]].transpose(0, 1)
        k_HTD, v_HTD = (x[ends_k[i] : ends_k[i + 1]].transpose(0, 1) for x in (k, v))
        num_q, num_k = q_HTD.size(1), k_HTD.size(1)
        sees = torch.ones(num_q, num_k, dtype=torch.bool).tril(diagonal=num_k - num_q)
        out_HTD = scaled_dot_product_attention(
            q_HTD[None], k_HTD[None], v_HTD[None], attn_mask=sees, scale=scale, enable_gqa=True
        )[0]
        found.append(out_HTD.transpose(0, 1))
    return torch.cat([*found, q.new_zeros(len(q) - ends_q[-1], *q.shape[1:])])
