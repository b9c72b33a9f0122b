"""SFT on rows that the host has tokenised.

What is trained is exactly what the host wrote: no template and no tokenizer runs here. Batches hold
rows of similar length, in an order fixed by the seed, however many ranks share a batch.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.train.trainer.child.trainer import StageTrainer
from forge.train.trainer.packed import sequences

if TYPE_CHECKING:
    import torch

    from forge.train.trainer.packed.head import Scores
    from forge.train.trainer.packed.sequences import MicroBatch

BATCHES_SORTED_TOGETHER = 32
"""Shuffled rows are sorted by length in chunks of this many batches: enough that lengths in a batch
nearly agree, few enough that batches stay random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A row of training data."""

    ids: np.ndarray
    """All tokens. [T]"""
    trained: np.ndarray
    """Positions of the trained tokens: those of the completion, without the first token of a row,
    which nothing predicts. [M]"""
    source: int = 0
    """Number of its source."""
    weight: float | None = None
    """Share of its source in the batches; None if rows are taken as they come."""


def read_rows(path: Path) -> list[TokenRow]:
    """Read JSON lines with `input_ids` and `completion_mask`, and `source` and `weight` of rows
    from weighted sources."""
    found: list[TokenRow] = []
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            mask = np.array(row["completion_mask"])
            assert len(mask) == len(row["input_ids"])
            found.append(
                TokenRow(
                    ids=np.array(row["input_ids"]),
                    trained=np.flatnonzero(mask[1:]) + 1,
                    source=row.get("source", 0),
                    weight=row.get("weight"),
                )
            )
    return found


def batches(
    lengths: Sequence[int],
    *,
    batch_size: int,
    seed: int,
    sources: Sequence[int] = (),
    weights: Mapping[int, float] | None = None,
) -> Iterator[list[int]]:
    """Numbers of rows, batch after batch without end: every row once in a pass, or each source's
    share of rows; rows of similar length together. Rows that do not fill a batch at the end of a
    pass are skipped in it.

    The order depends on the seed alone, so that a resumed stage continues where it stopped.
    `sources` has the source of each row; without `weights`, each row is as frequent."""
    whole, size = len(lengths), min(batch_size, len(lengths))
    drawn = _drawn(sources, weights, seed) if weights else None
    for number in itertools.count():
        draw = random.Random(f"{seed}/{number}")
        rows = list(range(whole))
        if drawn is not None:
            rows = sorted(itertools.islice(drawn, whole - whole % size))
        draw.shuffle(rows)
        found: list[list[int]] = []
        for chunk in _parts(rows, BATCHES_SORTED_TOGETHER * size):
            near = sorted(chunk, key=lambda i: lengths[i])
            found += [each for each in _parts(near, size) if len(each) == size]
        draw.shuffle(found)
        yield from found


def _parts(rows: list[int], size: int) -> list[list[int]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _drawn(sources: Sequence[int], weights: Mapping[int, float], seed: int) -> Iterator[int]:
    """Rows without end, each from the source that is furthest below its share."""
    total = sum(weights.values())
    shares = {source: weight / total for source, weight in weights.items()}
    rows = {source: _in_turn(sources, source, seed) for source in shares}
    taken = dict.fromkeys(shares, 0)
    for position in itertools.count(1):
        source = max(shares, key=lambda one: shares[one] * position - taken[one])
        taken[source] += 1
        yield next(rows[source])


def _in_turn(sources: Sequence[int], source: int, seed: int) -> Iterator[int]:
    """Rows of a source without end: each once in a round, in the round's own order."""
    rows = [index for index, found in enumerate(sources) if found == source]
    for number in itertools.count():
        yield from random.Random(f"{seed}/{source}/{number}").sample(rows, len(rows))


class AnswerTrainer(StageTrainer):
    """Trains a stage of SFT: the mean of -log p over the trained tokens of each batch."""

    def __init__(self, *, rows: Sequence[TokenRow], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows = rows
        self.num_trained = 0
        """Tokens that this rank has trained on, in this process."""
        self._num_top: torch.Tensor | int = 0
        self._num_scored = 0
        self._batches: Iterator[list[int]] | None = None

    def next_batch(self) -> list[MicroBatch]:
        """The micro-batches of the next step."""
        if self._batches is None:
            weights = {row.source: row.weight for row in self.rows if row.weight is not None}
            self._batches = itertools.islice(
                batches(
                    [len(row.ids) for row in self.rows],
                    batch_size=self.settings.stage["batch_size"],
                    seed=self.settings.seed,
                    sources=[row.source for row in self.rows],
                    weights=weights,
                ),
                self.step,
                None,
            )
        chosen = [self.rows[index] for index in next(self._batches)]
        weight = 1 / max(sum(len(row.trained) for row in chosen), 1)
        return self.cut([
            sequences.Sequence(ids=row.ids, trained=row.trained, values={"weight": weight})
            for row in chosen
        ])  # fmt: skip

    def loss_of(self, micro_batch: MicroBatch, scores: Scores) -> torch.Tensor:
        """Its part of the batch's mean."""
        if not micro_batch.is_filler and scores.is_top is not None:
            self.num_trained += micro_batch.num_trained
            self._num_scored += micro_batch.num_trained
            self._num_top = self._num_top + scores.is_top.sum()
        return -(scores.logps * micro_batch.values["weight"]).sum()

    def take_accuracy(self) -> float:
        """Share of trained tokens since the last call to which the model gave the highest
        probability, over all ranks. Collective; waits for the GPU."""
        right, scored = self.world.sum([float(self._num_top), float(self._num_scored)])
        self._num_top = self._num_scored = 0
        return right / max(scored, 1.0)
