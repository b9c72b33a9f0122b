"""Cutting a batch of samples into micro-batches within a budget of tokens: rows of similar length,
padded on the right, or one row of samples that share prefixes.

Shapes: B rows, T tokens of the longest row, P tokens of the shortest prompt, C = T - P. TRL's names
are kept. Its "prompt" is here only the first P columns, which need no scores; `tool_mask` marks the
model's own tokens in the C columns. Padding is on the right, where causal attention hides it from
every real token: attention masks are all ones, which selects torch's faster kernel.

Every rank cuts the whole batch in the same way and builds only its share. All ranks get the same
number of micro-batches, since each one is a collective; the i-th ones cost nearly the same.

With shared prefixes, samples are packed into one row, where a shared token is computed once.
Siblings share their prompt, and a turn's prompt holds the turns before it, so a GRPO batch repeats
most of its tokens. Sorted by their tokens, each sample shares with its predecessor all that it
shares with any earlier one. Only the rest of each sample is forwarded, and it attends to the keys
of its whole path (`model.attention`):

    sample 0   a b c d e            forwarded: a b c d e
    sample 1   a b c f              forwarded:     c f        keys: a b (of sample 0), c f

The last shared token (c) is forwarded again: its next token differs, and a position has one label.
Values and gradients equal those of the samples alone.

Shapes of a row: N tokens forwarded, S samples, K tokens of all samples together, M trained tokens.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from forge.records import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward and backward."""

    samples: tuple[Sample, ...]
    inputs: dict[str, torch.Tensor]
    """Inputs of TRL's `_compute_loss`."""
    num_tokens: int
    """Trained tokens."""
    token_share: float
    """Share of the trained tokens of the whole batch, over all ranks."""
    row_share: float
    """Share of the samples of the whole batch, over all ranks."""
    row: PrefixRow | None = None
    """The same samples packed, if prefixes are shared."""
    is_filler: bool = False
    """True for samples forwarded a second time so that all ranks have as many; has no weight."""

    @property
    def num_forwarded(self) -> int:
        """Tokens of the forward pass, padding included."""
        if self.row is not None:
            return self.row.num_forwarded
        prompt, completion = self.inputs["prompt_ids"], self.inputs["completion_ids"]
        return len(prompt) * (prompt.size(1) + completion.size(1))


def cut_batch(
    samples: Sequence[Sample],
    *,
    max_tokens: int,
    rank: int = 0,
    num_ranks: int = 1,
    shares_prefixes: bool = False,
) -> list[MicroBatch]:
    """One rank's micro-batches: longest samples first, or ordered by prefix.

    A sample longer than `max_tokens` gets its own micro-batch. If there are too few samples to give
    every rank as many micro-batches, the last sample is forwarded again as filler."""
    if shares_prefixes:
        cut = rows_by_prefix(samples, max_tokens=max_tokens, num_ranks=num_ranks)
    else:
        cut = rows_by_length(samples, max_tokens=max_tokens)
    rows = level(cut, num_ranks=num_ranks)
    num_fillers = -len(rows) % num_ranks
    total = sum(len(s.completion_ids) for s in samples)
    mine = [
        _micro_batch(each, total_tokens=total, total_rows=len(samples))
        for each in rows[rank::num_ranks]
    ]
    if rank >= num_ranks - num_fillers:
        mine.append(_micro_batch(rows[-1][-1:], total_tokens=total, total_rows=0))
    if shares_prefixes:
        return [replace(each, row=pack(each.samples)) for each in mine]
    return mine


def rows_by_length(samples: Sequence[Sample], *, max_tokens: int) -> list[Sequence[Sample]]:
    """The samples of each micro-batch, of similar length."""
    ordered = sorted(samples, key=num_tokens, reverse=True)
    cut: list[Sequence[Sample]] = []
    start = 0
    while start < len(ordered):
        num_rows = max(1, max_tokens // num_tokens(ordered[start]))
        cut.append(ordered[start : start + num_rows])
        start += num_rows
    return cut


def level(rows: Sequence[Sequence[Sample]], *, num_ranks: int) -> list[Sequence[Sample]]:
    """Halve the largest rows until their number is a multiple of `num_ranks`, or all have one
    sample."""
    cut = list(rows)
    while len(cut) % num_ranks and any(len(row) > 1 for row in cut):
        most = max(range(len(cut)), key=lambda i: (len(cut[i]) > 1, _area(cut[i])))
        half = (len(cut[most]) + 1) // 2
        cut[most : most + 1] = [cut[most][:half], cut[most][half:]]
    return cut


def _area(samples: Sequence[Sample]) -> int:
    return len(samples) * max(map(num_tokens, samples))


def _micro_batch(samples: Sequence[Sample], *, total_tokens: int, total_rows: int) -> MicroBatch:
    """Pad the samples into one micro-batch. `total_rows` is 0 for a filler."""
    width = max(map(num_tokens, samples))
    shared = min(len(s.prompt_ids) for s in samples)
    ids_BT = torch.zeros(len(samples), width, dtype=torch.long)
    mask_BT = torch.zeros(len(samples), width)
    old_BT = torch.zeros(len(samples), width)
    for row, sample in enumerate(samples):
        start, end = len(sample.prompt_ids), num_tokens(sample)
        ids_BT[row, :start] = torch.tensor(sample.prompt_ids)
        ids_BT[row, start:end] = torch.tensor(sample.completion_ids)
        mask_BT[row, start:end] = 1.0
        old_BT[row, start:end] = torch.tensor(sample.logprobs)
    ones_BT = torch.ones_like(ids_BT)
    inputs = {
        "prompt_ids": ids_BT[:, :shared],
        "prompt_mask": ones_BT[:, :shared],
        "completion_ids": ids_BT[:, shared:],
        "completion_mask": ones_BT[:, shared:],
        "tool_mask": mask_BT[:, shared:],
        "old_per_token_logps": old_BT[:, shared:],
        "advantages": torch.tensor([s.advantage for s in samples]),
        "num_items_in_batch": torch.tensor(float(total_tokens)),
    }
    trained = sum(len(s.completion_ids) for s in samples)
    return MicroBatch(
        samples=tuple(samples),
        inputs=inputs,
        num_tokens=trained,
        token_share=trained / max(total_tokens, 1) if total_rows else 0.0,
        row_share=len(samples) / total_rows if total_rows else 0.0,
        is_filler=not total_rows,
    )


def num_tokens(sample: Sample) -> int:
    """Tokens of prompt and completion."""
    return len(sample.prompt_ids) + len(sample.completion_ids)


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
