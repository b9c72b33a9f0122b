"""Cutting a batch of sequences into micro-batches within a budget of tokens. Rows of SFT and
samples of GRPO are the same here: tokens, positions that are trained, and values for each of these.

Packed, the sequences of a micro-batch are laid end to end in one row, without padding, and a token
that several of them share is computed once. Siblings of GRPO share their prompt, a turn's prompt
holds the turns before it, and rows of SFT begin with the same instructions. Sorted by their tokens,
each sequence shares with its predecessor all that it shares with any earlier one. Only the rest of
it is forwarded, and it attends to the keys of its whole path (`packed.attention`):

    sequence 0   a b c d e            forwarded: a b c d e
    sequence 1   a b c f              forwarded:       f        keys: a b c (of sequence 0), f

Values and gradients equal those of the sequences alone. A model that cannot be packed gets rows of
similar length instead, padded on the right, where causal attention hides the padding.

Every rank cuts the whole batch in the same way and builds only its share. All ranks get the same
number of micro-batches, since each one is a collective; the i-th ones cost nearly the same.

Shapes: R rows, N tokens of a row, S sequences, K keys of all of them, M trained tokens.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch

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
    in the flat rows, and the token that it predicts), and those of `packed.attention`."""
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
