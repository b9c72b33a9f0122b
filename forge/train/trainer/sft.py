"""An SFT stage, on rows that the host has tokenised.

What is trained is exactly what the host wrote: no template and no tokenizer runs here. Batches hold
rows of similar length, in an order fixed by the seed, however many ranks share a batch. After the
last step the weights are published once. SIGTERM: finish the step, save, end.
"""

from __future__ import annotations

import itertools
import json
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

from forge.train.trainer.child.control import SupervisorClient, open_stage
from forge.train.trainer.child.parallel import take_peak_bytes
from forge.train.trainer.child.settings import TrainerSettings, trainer_arguments
from forge.train.trainer.child.trainer import Reporter, StageTrainer
from forge.train.trainer.model.load import load_model
from forge.train.trainer.packed import sequences
from forge.train.trainer.packed.head import Scores
from forge.train.trainer.packed.sequences import MicroBatch
from forge.train.trainer.publish.weights import Tokens, probe, snapshot, write_and_offer

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 1.0


def train_answers(settings: TrainerSettings) -> None:
    assert settings.rows_path is not None
    last = settings.checkpoint
    with open_stage(settings) as (client, stop):
        rows = read_rows(settings.rows_path)
        trainer = make_trainer(settings, rows=rows)
        trainer.add_callback(SftReporter(trainer, client=client, stop=stop))
        logger.info("training %d rows from %s", len(trainer.rows), last or settings.model_dir)
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        step = trainer.state.global_step
        if step < trainer.state.max_steps:
            logger.info("stopped after step %d of %d, saved", step, trainer.state.max_steps)
            return
        _publish(trainer, client)


def _publish(trainer: AnswerTrainer, client: SupervisorClient) -> None:
    """Publish the weights as they are at the end; the probe is of the row with the most trained
    tokens. Collective."""
    model: Any = trainer.model
    settings, started = trainer.settings, time.monotonic()
    row = max(trainer.rows, key=lambda row: len(row.trained))
    start = next(iter(row.trained.tolist()), None)
    with trainer.card.taken():
        weights = snapshot(model, dtype=settings.publish_dtype, keeps=trainer.world.is_main)
        scored = None if start is None else probe(model, Tokens.of_row(row.ids.tolist(), start))
    if trainer.world.is_main:
        write_and_offer(
            model, weights, scored, settings=settings, client=client, step=trainer.step,
            copied_s=time.monotonic() - started,
        )  # fmt: skip


def make_trainer(settings: TrainerSettings, *, rows: Sequence[TokenRow]) -> AnswerTrainer:
    model, arguments = load_model(settings), trainer_arguments(settings)
    return AnswerTrainer(rows=rows, settings=settings, model=model, arguments=arguments)


class SftReporter(Reporter["AnswerTrainer"]):
    """Also reports progress each second and ends the stage after SIGTERM. Rank 0 decides for all
    ranks."""

    _reported_at = 0.0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask for a log line when progress is due, for a checkpoint and the end after SIGTERM."""
        is_due, is_asked_to_stop = self._trainer.world.from_main(
            lambda: (time.monotonic() - self._reported_at >= PROGRESS_EVERY_S, self._stop.is_set)
        )
        if is_due or state.global_step >= state.max_steps:
            control.should_log = True
        if is_asked_to_stop:
            control.should_save = control.should_training_stop = True

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
        logs: dict[str, float] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Report the metrics of the steps since the last report."""
        if logs is None or "loss" not in logs:
            return
        now, world = time.monotonic(), self._trainer.world
        num_tokens, accuracy = self._trainer.take_scored()
        metrics = {
            "train/loss/mean": logs["loss"],
            "train/grad_norm/value": logs["grad_norm"],
            "train/learning_rate/value": logs["learning_rate"],
            "train/token_accuracy/mean": accuracy,
        }
        if seconds := self._trainer.take_checkpoint_s():
            metrics["train/checkpoint/seconds"] = seconds
        (peak,) = world.max([float(take_peak_bytes())])
        if peak:
            metrics["train/peak_bytes/max"] = peak
        if self._reported_at:
            metrics["train/tokens/per_s"] = num_tokens / (now - self._reported_at)
        self._reported_at = now
        report = partial(self._client.progress, step=state.global_step, total=state.max_steps)
        if world.from_main(partial(report, metrics=metrics)).save:
            self.save(control)


BATCHES_SORTED_TOGETHER = 32
"""Shuffled rows are sorted by length in chunks of this many batches: enough that lengths in a batch
nearly agree, few enough that batches stay random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
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
            ids, trained = np.array(row["input_ids"]), np.flatnonzero(mask[1:]) + 1
            source, weight = row.get("source", 0), row.get("weight")
            found.append(TokenRow(ids=ids, trained=trained, source=source, weight=weight))
    return found


def batches(
    lengths: Sequence[int], *, batch_size: int, seed: int, sources: Sequence[int] = (),
    weights: Mapping[int, float] | None = None,
) -> Iterator[list[int]]:  # fmt: skip
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
        self._num_top: torch.Tensor | int = 0
        self._num_scored = 0
        self._batches: Iterator[list[int]] | None = None

    def next_batch(self) -> list[MicroBatch]:
        if self._batches is None:
            weights = {row.source: row.weight for row in self.rows if row.weight is not None}
            found = batches(
                [len(row.ids) for row in self.rows], batch_size=self.settings.stage["batch_size"],
                seed=self.settings.seed, sources=[row.source for row in self.rows], weights=weights,
            )  # fmt: skip
            self._batches = itertools.islice(found, self.step, None)
        chosen = [self.rows[index] for index in next(self._batches)]
        weight = 1 / max(sum(len(row.trained) for row in chosen), 1)
        return self.cut([
            sequences.Sequence(ids=row.ids, trained=row.trained, values={"weight": weight})
            for row in chosen
        ])  # fmt: skip

    def loss_of(self, micro_batch: MicroBatch, scores: Scores) -> torch.Tensor:
        if not micro_batch.is_filler and scores.is_top is not None:
            self._num_scored += micro_batch.num_trained
            self._num_top = self._num_top + scores.is_top.sum()
        return -(scores.logps * micro_batch.values["weight"]).sum()

    def take_scored(self) -> tuple[float, float]:
        """Trained tokens since the last call, and the share of them to which the model gave the
        highest probability, over all ranks. Collective; waits for the GPU."""
        right, scored = self.world.sum([float(self._num_top), float(self._num_scored)])
        self._num_top = self._num_scored = 0
        return scored, right / max(scored, 1.0)
