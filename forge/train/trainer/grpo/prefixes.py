"""Packing samples that share prefixes into one row: a shared token is computed once.

Siblings share their prompt, and a turn's prompt holds the turns before it, so a GRPO batch repeats
most of its tokens. Sorted by their tokens, each sample shares with its predecessor all that it
shares with any earlier one. Only the rest of each sample is forwarded, and it attends to the keys
of its whole path (`model.attention`):

    sample 0   a b c d e            forwarded: a b c d e
    sample 1   a b c f              forwarded:     c f        keys: a b (of sample 0), c f

The last shared token (c) is forwarded again: its next token differs, and a position has one label.
Values and gradients equal those of the samples alone.

Shapes: N tokens forwarded, S samples, K tokens of all samples together, M trained tokens.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from forge.records import Sample

KEYS_PER_TOKEN = 4
"""Maximum keys per forwarded token. A layer gathers the keys and values of every sample's whole
path; this bounds their memory if short answers share a long prompt. Groups of 8 with two turns have
3.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRow:
    """A forward pass of samples that share prefixes."""

    inputs: dict[str, torch.Tensor]
    """Inputs of the model: `input_ids`, `position_ids`, `shift_labels` [1, N], `prefix_keys` [K],
    and the ends `prefix_ends_q`, `prefix_ends_k` [S + 1]."""
    longest: dict[str, int]
    """Inputs of the model: `prefix_max_q`, `prefix_max_k`, in tokens."""
    token_index: torch.Tensor
    """Position that predicts each trained token, sample after sample. [M]"""

    @property
    def num_forwarded(self) -> int:
        """Tokens of the forward pass."""
        return self.inputs["input_ids"].numel()


def rows_by_prefix(
    samples: Sequence[Sample], *, max_tokens: int, num_ranks: int = 1
) -> list[Sequence[Sample]]:
    """The samples of each row, in the order for `pack`. A row forwards at most `max_tokens` and has
    at most `KEYS_PER_TOKEN` times as many keys, unless it is a single longer sample. Ranks take
    rows in turn: the budget shrinks as far as no rank gets more rows, so that rows are even."""
    ordered = sorted(samples, key=_ids)
    ids = [np.array(_ids(sample)) for sample in ordered]
    sizes = [len(each) for each in ids]
    shared = [0, *itertools.starmap(_num_shared, itertools.pairwise(ids))]
    starts = _cut(sizes, shared, max_tokens)
    if num_ranks > 1:
        most = -(-len(starts) // num_ranks) * num_ranks
        budgets = range(1, max_tokens + 1)
        fits = bisect.bisect_left(
            budgets, True, key=lambda budget: len(_cut(sizes, shared, budget)) <= most
        )
        starts = _cut(sizes, shared, budgets[fits])
    return [ordered[start:end] for start, end in itertools.pairwise([*starts, len(ordered)])]


def _cut(sizes: Sequence[int], shared: Sequence[int], max_tokens: int) -> list[int]:
    """Indices of the samples that start a row. `sizes` are tokens of each sample, `shared` how many
    of them it shares with the sample before."""
    starts: list[int] = []
    forwarded = keys = 0
    for number, size in enumerate(sizes):
        forwarded += size - shared[number]
        keys += size
        if not starts or forwarded > max_tokens or keys > KEYS_PER_TOKEN * max_tokens:
            starts.append(number)
            forwarded = keys = size
    return starts


def pack(samples: Sequence[Sample]) -> PrefixRow:
    """Pack the samples of one row of `rows_by_prefix`."""
    tokens, places, labels, paths, ends_q, index = [], [], [], [], [0], []
    before, path = np.array([], dtype=np.int64), np.array([], dtype=np.int64)
    label = np.full(sum(map(len, map(_ids, samples))), -100, dtype=np.int64)
    for sample in samples:
        ids = np.array(_ids(sample))
        shared = _num_shared(before, ids) if len(before) else 0
        start = ends_q[-1]
        path = np.concatenate([path[:shared], np.arange(start, start + len(ids) - shared)])
        tokens.append(ids[shared:])
        places.append(np.arange(shared, len(ids)))
        paths.append(path)
        ends_q.append(start + len(ids) - shared)
        predicts = path[len(sample.prompt_ids) - 1 : len(ids) - 1]
        label[predicts] = sample.completion_ids
        index.append(predicts)
        before = ids
    labels = label[: ends_q[-1]]
    ends_k = np.cumsum([0, *map(len, paths)])
    return PrefixRow(
        inputs={
            "input_ids": torch.from_numpy(np.concatenate(tokens))[None],
            "position_ids": torch.from_numpy(np.concatenate(places))[None],
            "shift_labels": torch.from_numpy(labels)[None],
            "prefix_keys": torch.from_numpy(np.concatenate(paths)),
            "prefix_ends_q": torch.tensor(ends_q, dtype=torch.int32),
            "prefix_ends_k": torch.from_numpy(ends_k.astype(np.int32)),
        },
        longest={"prefix_max_q": max(map(len, tokens)), "prefix_max_k": max(map(len, paths))},
        token_index=torch.from_numpy(np.concatenate(index)),
    )


def _ids(sample: Sample) -> tuple[int, ...]:
    return (*sample.prompt_ids, *sample.completion_ids)


def _num_shared(before: np.ndarray, ids: np.ndarray) -> int:
    """Leading tokens that need no second forward: those whose next token is also the same."""
    size = min(len(before), len(ids))
    differs = np.flatnonzero(before[:size] != ids[:size])
    alike = int(differs[0]) if len(differs) else size
    return max(0, alike - 1)
