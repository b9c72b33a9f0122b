"""SFT rows: reading the host's file, the order of training, cutting batches into micro-batches."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from torch.utils.data import Sampler

if TYPE_CHECKING:
    import torch

BATCHES_SORTED_TOGETHER = 32
"""Shuffled rows are sorted by length in chunks of this many batches: enough that lengths in a batch
nearly agree, few enough that batches stay random."""


def read_rows(path: Path) -> Dataset:
    """Read JSON lines with `input_ids` and `completion_mask`. Tokens outside the mask get the label
    -100."""
    with path.open() as lines:
        rows = [json.loads(line) for line in lines]
    labels = [
        [token if trained else -100 for token, trained in zip(*pair, strict=True)]
        for pair in ((r["input_ids"], r["completion_mask"]) for r in rows)
    ]
    return Dataset.from_dict({"input_ids": [r["input_ids"] for r in rows], "labels": labels})


class BatchOrder(Sampler[int]):
    """Row indices for a whole stage, batch after batch: every row once in a pass, rows of similar
    length together.

    The order depends on the seed alone, so that a resumed stage continues where it stopped.
    """

    def __init__(
        self, lengths: Sequence[int], *, batch_size: int, num_batches: int, seed: int
    ) -> None:
        self.lengths = lengths
        self.batch_size = min(batch_size, len(lengths))
        self.num_batches = num_batches
        self.seed = seed

    def __len__(self) -> int:
        return self.num_batches * self.batch_size

    def __iter__(self) -> Iterator[int]:
        batches = itertools.islice(self._batches(), self.num_batches)
        return itertools.chain.from_iterable(batches)

    def _batches(self) -> Iterator[list[int]]:
        """Batches without end. Rows that do not fill a batch at the end of a pass are skipped in
        it."""
        for number in itertools.count():
            draw = random.Random(f"{self.seed}/{number}")
            rows = list(range(len(self.lengths)))
            draw.shuffle(rows)
            chunk = BATCHES_SORTED_TOGETHER * self.batch_size
            found: list[list[int]] = []
            for start in range(0, len(rows), chunk):
                near = sorted(rows[start : start + chunk], key=lambda i: self.lengths[i])
                found += _full_batches(near, self.batch_size)
            draw.shuffle(found)
            yield from found


def _full_batches(rows: Sequence[int], size: int) -> list[list[int]]:
    cut = [list(rows[i : i + size]) for i in range(0, len(rows), size)]
    return [batch for batch in cut if len(batch) == size]


def cut_rows(inputs: Mapping[str, torch.Tensor], *, num: int) -> list[dict[str, Any]]:
    """Cut a batch into `num` parts of similar size, each without the columns that are padding in
    all of its rows. All tensors are [B, T]; the label of padding is -100."""
    if num == 1:
        return [dict(inputs)]
    columns = {name: tensor_BT.tensor_split(num) for name, tensor_BT in inputs.items()}
    parts = [{name: each[i] for name, each in columns.items()} for i in range(num)]
    for part in parts:
        used_T = (part["labels"] != -100).any(dim=0).nonzero()
        width = int(used_T.max()) + 1 if len(used_T) else 1
        for name, tensor_BT in part.items():
            part[name] = tensor_BT[:, :width]
    return parts
