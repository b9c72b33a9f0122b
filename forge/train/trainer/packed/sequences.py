"""Cutting a batch of sequences into micro-batches within a budget of tokens. Rows of SFT and
samples of GRPO are the same here: tokens, positions that are trained, and values for each of these.

Packed, the sequences of a micro-batch are laid end to end in one row, without padding, and a token
that several of them share is computed once. Siblings of GRPO share their prompt, a turn's prompt
holds the turns before it, and rows of SFT begin with the same instructions. Sorted by their tokens,
each sequence shares with its predecessor all that it shares with any earlier one. Only the rest of
it is forwarded, and it attends to the keys of its whole path:

    sequence 0   a b c d e            forwarded: a b c d e
    sequence 1   a b c f              forwarded:       f        keys: a b c (of sequence 0), f

Values and gradients equal those of the sequences alone. A model that cannot be packed gets rows of
similar length instead, padded on the right, where causal attention hides the padding.

Attention is causal, each sequence to its own keys: torch's flash kernel on CUDA, SDPA of one
sequence at a time elsewhere. Needs torch 2.10 or later, no other kernels.

Every rank cuts the whole batch in the same way and builds only its share. All ranks get the same
number of micro-batches, since each one is a collective; the i-th ones cost nearly the same.

Shapes: R rows, N tokens of a row, S sequences, K keys of all of them, M trained tokens; in
attention B batch, H heads, T tokens, D size of a head.
"""

from __future__ import annotations

import bisect
import inspect
import itertools
from collections.abc import Mapping
from collections.abc import Sequence as Several
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from forge.errors import ConfigError

KEYS_PER_TOKEN = 4
"""Maximum keys per forwarded token. A layer gathers the keys and values of every sequence's whole
path; this bounds their memory if short answers share a long prompt. Groups of 8 with two turns have
3.5."""


class RowLayout(StrEnum):
    """Order of a micro-batch's tokens."""

    PADDED = "padded"
    """A row for each sequence."""
    PACKED = "packed"
    """One row, each token of each sequence once."""
    SHARED = "shared"
    """One row, a shared prefix once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Tokens of which some are trained."""

    ids: np.ndarray
    """All tokens. [T]"""
    trained: np.ndarray
    """Positions of the trained tokens, in order; none is 0. [M]"""
    values: Mapping[str, np.ndarray | float]
    """Numbers of each trained token, as its `weight` in the loss: an array, or one for all. [M]"""

    @property
    def size(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    sequences: tuple[Sequence, ...]
    inputs: dict[str, Any]
    """Inputs of the model: `input_ids`, `position_ids` [R, N], `scored`, `targets` [M] (a position
    in the flat rows, and the token that it predicts), and those of the attention."""
    values: dict[str, torch.Tensor]
    """The sequences' values, in the order of `targets`. [M]"""
    share: float
    """Share of the batch's trained tokens, over all ranks; 0 for a filler."""

    @property
    def is_filler(self) -> bool:
        """True for a sequence forwarded again so that all ranks have as many; its weight is 0."""
        return not self.share

    @property
    def num_trained(self) -> int:
        return len(self.inputs["targets"])

    @property
    def num_forwarded(self) -> int:
        """Tokens of the forward pass, padding included."""
        return self.inputs["input_ids"].numel()

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequences, each with its prefix."""
        return sum(each.size for each in self.sequences)

    def on(self, device: torch.device) -> MicroBatch:
        """The same on a device. The copies are queued: the host does not wait for the GPU."""

        def moved(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or device.type == "cpu":
                return value
            return value.pin_memory().to(device, non_blocking=True)

        return MicroBatch(
            sequences=self.sequences,
            inputs={name: moved(value) for name, value in self.inputs.items()},
            values={name: moved(value) for name, value in self.values.items()},
            share=self.share,
        )


def cut_batch(
    sequences: Several[Sequence], *, max_tokens: int, layout: RowLayout, rank: int = 0,
    num_ranks: int = 1,
) -> list[MicroBatch]:  # fmt: skip
    """One rank's micro-batches.

    A sequence longer than `max_tokens` gets its own. If there are too few sequences to give every
    rank as many micro-batches, the last one is forwarded again as filler."""
    rows = _level(_rows(sequences, max_tokens, layout, num_ranks), num_ranks=num_ranks)
    num_fillers = -len(rows) % num_ranks
    total = max(sum(len(each.trained) for each in sequences), 1)
    mine = [_made(each, layout, total=total) for each in rows[rank::num_ranks]]
    if rank >= num_ranks - num_fillers:
        mine.append(_made(rows[-1][-1:], layout, total=0))
    return mine


def _rows(
    sequences: Several[Sequence], max_tokens: int, layout: RowLayout, num_ranks: int
) -> list[Several[Sequence]]:
    """The sequences of each micro-batch. Ranks take packed ones in turn: the budget shrinks as far
    as no rank gets more of them, so that they are even."""
    if layout is RowLayout.SHARED:
        ordered = sorted(sequences, key=lambda each: each.ids.tolist())
        shared = [0, *(_num_shared(a.ids, b.ids) for a, b in itertools.pairwise(ordered))]
    else:
        ordered = sorted(sequences, key=lambda each: each.size, reverse=True)
        shared = [0] * len(ordered)
    sizes = [each.size for each in ordered]
    if layout is RowLayout.PADDED:
        starts = _cut_by_width(sizes, max_tokens)
    else:
        starts = _cut(sizes, shared, max_tokens)
        if num_ranks > 1:
            most = -(-len(starts) // num_ranks) * num_ranks
            budgets = range(1, max_tokens + 1)
            fits = bisect.bisect_left(
                budgets, True, key=lambda budget: len(_cut(sizes, shared, budget)) <= most
            )
            starts = _cut(sizes, shared, budgets[fits])
    return [ordered[start:end] for start, end in itertools.pairwise([*starts, len(ordered)])]


def _cut_by_width(sizes: Several[int], budget: int) -> list[int]:
    """Indices of the sequences that start a micro-batch of padded rows, the longest first."""
    starts, end = list[int](), 0
    while end < len(sizes):
        starts.append(end)
        end += max(1, budget // sizes[end])
    return starts


def _cut(sizes: Several[int], shared: Several[int], budget: int) -> list[int]:
    """The same for packed sequences: at most `budget` tokens forwarded and `KEYS_PER_TOKEN` times
    as many keys. `shared` is how many tokens each has in common with the one before it."""
    starts: list[int] = []
    forwarded = keys = 0
    for number, size in enumerate(sizes):
        forwarded += size - shared[number]
        keys += size
        if not starts or forwarded > budget or keys > KEYS_PER_TOKEN * budget:
            starts.append(number)
            forwarded = keys = size
    return starts


def _level(rows: Several[Several[Sequence]], *, num_ranks: int) -> list[Several[Sequence]]:
    """Halve the largest micro-batches until their number is a multiple of `num_ranks`, or all have
    one sequence."""
    cut = list(rows)
    while len(cut) % num_ranks and any(len(row) > 1 for row in cut):
        most = max(range(len(cut)), key=lambda i: (len(cut[i]) > 1, _area(cut[i])))
        half = (len(cut[most]) + 1) // 2
        cut[most : most + 1] = [cut[most][:half], cut[most][half:]]
    return cut


def _area(sequences: Several[Sequence]) -> int:
    return len(sequences) * max(each.size for each in sequences)


def _made(sequences: Several[Sequence], layout: RowLayout, *, total: int) -> MicroBatch:
    """A micro-batch. `total` is the number of the batch's trained tokens; 0 for a filler."""
    lay = _padded if layout is RowLayout.PADDED else _packed
    inputs, paths = lay(sequences, shares=layout is RowLayout.SHARED)
    scored = [path[each.trained - 1] for path, each in zip(paths, sequences, strict=True)]
    targets = [each.ids[each.trained] for each in sequences]
    num = sum(len(each.trained) for each in sequences)
    values = {
        name: np.concatenate([
            np.broadcast_to(np.asarray(each.values[name], dtype=np.float32), each.trained.shape)
            for each in sequences
        ])
        for name in sequences[0].values
    }  # fmt: skip
    if not total:
        values["weight"] = np.zeros(num, dtype=np.float32)
    return MicroBatch(
        sequences=tuple(sequences),
        inputs={
            **inputs,
            "scored": torch.from_numpy(np.concatenate(scored)),
            "targets": torch.from_numpy(np.concatenate(targets).astype(np.int64)),
        },
        values={name: torch.from_numpy(value) for name, value in values.items()},
        share=num / total if total else 0.0,
    )


def _padded(
    sequences: Several[Sequence], *, shares: bool
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A row for each sequence: inputs of the model, and the flat position of each token."""
    width = max(each.size for each in sequences)
    ids_RN = np.zeros((len(sequences), width), dtype=np.int64)
    for row, each in enumerate(sequences):
        ids_RN[row, : each.size] = each.ids
    paths = [np.arange(row * width, row * width + s.size) for row, s in enumerate(sequences)]
    return {"input_ids": torch.from_numpy(ids_RN)}, paths


def _packed(
    sequences: Several[Sequence], *, shares: bool
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """All sequences in one row: the same, and the keys of each sequence."""
    none = np.array([], dtype=np.int64)
    before, path, paths, ends, tokens, places = none, none, list[np.ndarray](), [0], [], []
    for each in sequences:
        shared = _num_shared(before, each.ids) if shares else 0
        num_new = each.size - shared
        path = np.concatenate([path[:shared], np.arange(ends[-1], ends[-1] + num_new)])
        paths.append(path)
        tokens.append(each.ids[shared:])
        places.append(np.arange(shared, each.size))
        ends.append(ends[-1] + num_new)
        before = each.ids
    keys = np.concatenate(paths)
    sizes = [len(path) for path in paths]
    inputs: dict[str, Any] = {
        "input_ids": torch.from_numpy(np.concatenate(tokens).astype(np.int64))[None],
        "position_ids": torch.from_numpy(np.concatenate(places))[None],
        "packed_ends_q": torch.tensor(ends, dtype=torch.int32),
        "packed_ends_k": torch.from_numpy(np.cumsum([0, *sizes], dtype=np.int32)),
        "packed_max_q": max(map(len, tokens)),
        "packed_max_k": max(sizes),
    }
    if len(keys) > ends[-1]:
        inputs["packed_keys"] = torch.from_numpy(keys)
    return inputs, paths


def _num_shared(before: np.ndarray, ids: np.ndarray) -> int:
    """Leading tokens that two sequences have in common; the last one is always forwarded."""
    size = min(len(before), len(ids) - 1)
    differs = np.flatnonzero(before[:size] != ids[:size])
    return int(differs[0]) if len(differs) else size


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
