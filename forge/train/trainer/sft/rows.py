"""SFT rows as the host wrote them, the order in which they are trained, and batches of them cut."""

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

# A shuffled stretch of this many batches is sorted by length before it is cut: long enough that
# lengths in a batch nearly agree, short enough that batches stay random.
BATCHES_SORTED_TOGETHER = 32


def read_rows(path: Path) -> Dataset:
    """JSON lines with `input_ids` and `completion_mask`; what the mask leaves out gets the label
    -100."""
    with path.open() as lines:
        rows = [json.loads(line) for line in lines]
    labels = [
        [token if trained else -100 for token, trained in zip(*pair, strict=True)]
        for pair in ((r["input_ids"], r["completion_mask"]) for r in rows)
    ]
    return Dataset.from_dict({"input_ids": [r["input_ids"] for r in rows], "labels": labels})


class BatchOrder(Sampler[int]):
    """Row indices for a whole stage, batch after batch: every row once a pass, rows of like length
    together.

    A function of the seed alone, so that a resumed stage continues where it was.
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
        """Endless. Rows that fill no batch at the end of a pass are left out of that pass."""
        for number in itertools.count():
            draw = random.Random(f"{self.seed}/{number}")
            rows = list(range(len(self.lengths)))
            draw.shuffle(rows)
            stretch = BATCHES_SORTED_TOGETHER * self.batch_size
            found: list[list[int]] = []
            for start in range(0, len(rows), stretch):
                near = sorted(rows[start : start + stretch], key=lambda i: self.lengths[i])
                found += _full_batches(near, self.batch_size)
            draw.shuffle(found)
            yield from found


def _full_batches(rows: Sequence[int], size: int) -> list[list[int]]:
    cut = [list(rows[i : i + size]) for i in range(0, len(rows), size)]
    return [batch for batch in cut if len(batch) == size]


def cut_rows(inputs: Mapping[str, torch.Tensor], *, num: int) -> list[dict[str, Any]]:
    """The rows of a batch in `num` parts of like size, each without columns that are padding in all
    of its rows. [B, T] each; labels of padding are -100, as all tell."""
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
