"""Causal attention of packed sequences, each to its own keys: torch's flash kernel on CUDA, SDPA of
one sequence at a time elsewhere. Needs torch 2.10 or later, no other kernels.

`packed.sequences` makes the inputs: ends of each sequence's queries and keys, and the keys of all
of them, if some are shared.

Shapes: B batch, H heads, T tokens, D size of a head, N tokens of a row, K keys, S sequences.
"""

from __future__ import annotations

import inspect
import itertools
from contextlib import suppress
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from forge.errors import ConfigError

ATTENTION = "forge_packed"
"""Name of this attention in a model's config. Inputs that are not packed get causal SDPA."""


_OPTIONS: set[str] = set()
"""Parameters of this torch version's kernel; earlier versions have fewer."""


def register_attention() -> None:
    """Register `ATTENTION` with transformers, without a mask: to look for packed sequences in the
    positions, as for a mask, would wait for the GPU at each forward pass."""
    AttentionInterface.register(ATTENTION, _attention)
    with suppress(ImportError):
        from torch.nn.attention.varlen import varlen_attn

        _OPTIONS.update(inspect.signature(varlen_attn).parameters)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed_ends_q: torch.Tensor | None = None,
    packed_ends_k: torch.Tensor | None = None,
    packed_max_q: int = 0,
    packed_max_k: int = 0,
    packed_keys: torch.Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: [B, H, T, D] in, [B, T, H, D] out."""
    if packed_ends_q is None or packed_ends_k is None:
        num = query.size(2)
        if sliding_window is not None and sliding_window < num:
            ones = torch.ones(num, num, dtype=torch.bool, device=query.device)
            attention_mask = ones.tril().triu(1 - sliding_window)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    assert kwargs.get("softcap") is None, "refused before the start: forge.train.refusals"
    # Under autocast norms and rotations return f32, which the kernel does not accept.
    is_mixed = query.is_cuda and torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda") if is_mixed else query.dtype
    q_NHD, k_KHD, v_KHD = (x[0].transpose(0, 1).to(dtype) for x in (query, key, value))
    if packed_keys is not None:
        k_KHD, v_KHD = (x.index_select(0, packed_keys) for x in (k_KHD, v_KHD))
    attend: Any = _by_kernel if query.is_cuda else _by_sequence
    out_NHD = attend(
        q_NHD, k_KHD, v_KHD, ends_q=packed_ends_q, ends_k=packed_ends_k, max_q=packed_max_q,
        max_k=packed_max_k, scale=scaling, window=sliding_window,
    )  # fmt: skip
    return out_NHD[None], None


def _by_kernel(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, ends_q: torch.Tensor,
    ends_k: torch.Tensor, max_q: int, max_k: int, scale: float | None, window: int | None,
) -> torch.Tensor:  # fmt: skip
    """Attention of each sequence's queries, which are its last tokens, to all its keys. [N, H, D]

    `ends_q` are the start of each sequence's queries and the end of the last, `max_q` the most
    queries of a sequence; `ends_k` and `max_k` the same for keys. [S + 1]"""
    from torch.nn.attention.varlen import varlen_attn

    attend: Any = varlen_attn
    options: dict[str, Any] = {"is_causal": True}
    if "window_size" in _OPTIONS:
        options = {"window_size": (-1 if window is None else window - 1, 0)}
    elif window is not None:
        raise ConfigError("packing: found true for layers with windows, and a torch without; false")
    if "scale" in _OPTIONS:
        options["scale"] = scale
    if "enable_gqa" in _OPTIONS:
        options["enable_gqa"] = True
    else:
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    width = v.size(-1)  # of DeepSeek's values, less than that of its keys
    v = torch.nn.functional.pad(v, (0, k.size(-1) - width))
    found = attend(q, k, v, ends_q, ends_k, max_q, max_k, **options)
    return found[..., :width]


@torch.compiler.disable
def _by_sequence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, ends_q: torch.Tensor,
    ends_k: torch.Tensor, max_q: int, max_k: int, scale: float | None, window: int | None,
) -> torch.Tensor:  # fmt: skip
    """The same by SDPA."""
    found = []
    queries, keys = (itertools.pairwise(ends.tolist()) for ends in (ends_q, ends_k))
    for (q0, q1), (k0, k1) in zip(queries, keys, strict=True):
        q_HTD, k_HTD, v_HTD = (
            x.transpose(0, 1)[None] for x in (q[q0:q1], k[k0:k1], v[k0:k1])
        )  # fmt: skip
        num_q, num_k, sees = q1 - q0, k1 - k0, None
        is_whole = num_q == num_k and (window is None or num_k <= window)
        if not is_whole:
            sees = torch.ones(num_q, num_k, dtype=torch.bool).tril(diagonal=num_k - num_q)
            if window is not None:
                sees = sees.triu(diagonal=num_k - num_q - window + 1)
        out_HTD = scaled_dot_product_attention(
            q_HTD, k_HTD, v_HTD, attn_mask=sees, is_causal=is_whole, scale=scale, enable_gqa=True
        )[0]
        found.append(out_HTD.transpose(0, 1))
    return torch.cat(found)
