"""Cutting a batch of samples into micro-batches: rows of similar length, padded on the right,
within a budget of tokens.

Shapes: B rows, T tokens of the longest row, P tokens of the shortest prompt, C = T - P. TRL's names
are kept. Its "prompt" is here only the first P columns, which need no scores; `tool_mask` marks the
model's own tokens in the C columns. Padding is on the right, where causal attention hides it from
every real token: attention masks are all ones, which selects torch's faster kernel.

Every rank cuts the whole batch in the same way and builds only its share. All ranks get the same
number of micro-batches, since each one is a collective; the i-th ones cost nearly the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from forge.train.trainer.grpo.prefixes import PrefixRow, pack, rows_by_prefix

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
