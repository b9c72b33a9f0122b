"""A batch of samples cut into micro-batches: rows of like length, padded on the right, within a
budget of tokens.

Shapes: B rows, T tokens of the longest, P prompt tokens that all rows of a micro-batch have in
common, C = T - P. TRL's names are kept. Its "prompt" is here only the first P columns, which need
no scores; `tool_mask` says which of the C columns are the model's own tokens. Padding stands on the
right, where causal attention keeps it out of sight of every real token: masks for attention are all
ones, which takes torch's faster kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from forge.records import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward and backward."""

    samples: tuple[Sample, ...]
    inputs: dict[str, torch.Tensor]
    """What TRL's `_compute_loss` reads."""
    num_tokens: int
    """Trained tokens, of `num_items_in_batch` in the whole batch."""


def cut_batch(samples: Sequence[Sample], *, max_tokens: int) -> list[MicroBatch]:
    """Micro-batches of the samples, longest first. A sample longer than `max_tokens` gets one of
    its own."""
    ordered = sorted(samples, key=_length, reverse=True)
    total = sum(len(s.completion_ids) for s in samples)
    cut: list[MicroBatch] = []
    start = 0
    while start < len(ordered):
        num_rows = max(1, max_tokens // _length(ordered[start]))
        cut.append(_micro_batch(ordered[start : start + num_rows], total_tokens=total))
        start += num_rows
    return cut


def _micro_batch(samples: Sequence[Sample], *, total_tokens: int) -> MicroBatch:
    width = max(map(_length, samples))
    shared = min(len(s.prompt_ids) for s in samples)
    ids_BT = torch.zeros(len(samples), width, dtype=torch.long)
    mask_BT = torch.zeros(len(samples), width)
    old_BT = torch.zeros(len(samples), width)
    for row, sample in enumerate(samples):
        start, end = len(sample.prompt_ids), _length(sample)
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
    return MicroBatch(
        samples=tuple(samples),
        inputs=inputs,
        num_tokens=sum(len(s.completion_ids) for s in samples),
    )


def _length(sample: Sample) -> int:
    return len(sample.prompt_ids) + len(sample.completion_ids)
