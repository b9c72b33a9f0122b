"""TRL's SFTTrainer on rows that the host has tokenised.

What is trained is exactly what the host wrote: no template and no tokenizer runs here. Batches hold
rows of similar length, in an order fixed by the seed, however many ranks share a batch.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from forge.errors import ConfigError
from forge.train.trainer.child.trainer import StageTrainer

if TYPE_CHECKING:
    from trl.trainer.sft_config import SFTConfig

    from forge.train.trainer.child.settings import TrainerSettings

BATCHES_SORTED_TOGETHER = 32
"""Shuffled rows are sorted by length in chunks of this many batches: enough that lengths in a batch
nearly agree, few enough that batches stay random."""
PACKED_TWICE = 16
"""Tokens that show if conversations in a row see each other."""
MAX_PACKED_GAP = 0.02
"""Maximum relative difference of their logits; attention to other tokens gives more than 0.1."""


def read_rows(path: Path) -> Dataset:
    """Read JSON lines with `input_ids` and `completion_mask`, and `source` and `weight` of rows
    from weighted sources. Tokens outside the mask get the label -100."""
    with path.open() as lines:
        rows = [json.loads(line) for line in lines]
    labels = [
        [token if trained else -100 for token, trained in zip(*pair, strict=True)]
        for pair in ((r["input_ids"], r["completion_mask"]) for r in rows)
    ]
    mixed = {name: [r[name] for r in rows] for name in ("source", "weight") if name in rows[0]}
    return Dataset.from_dict(
        {"input_ids": [r["input_ids"] for r in rows], "labels": labels, **mixed}
    )


class BatchOrder(Sampler[int]):
    """Row indices for a whole stage, batch after batch: every row once in a pass, or each source's
    share of rows; rows of similar length together.

    The order depends on the seed alone, so that a resumed stage continues where it stopped."""

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        batch_size: int,
        num_batches: int,
        seed: int,
        sources: Sequence[int] = (),
        weights: Mapping[int, float] | None = None,
    ) -> None:
        """`sources` has the source of each row; without `weights`, each row is as frequent."""
        self.lengths = lengths
        self.batch_size = min(batch_size, len(lengths))
        self.num_batches = num_batches
        self.seed = seed
        self.sources = sources
        self.weights = weights or {}

    def __len__(self) -> int:
        return self.num_batches * self.batch_size

    def __iter__(self) -> Iterator[int]:
        batches = itertools.islice(self._batches(), self.num_batches)
        return itertools.chain.from_iterable(batches)

    def _batches(self) -> Iterator[list[int]]:
        """Batches without end. Rows that do not fill a batch at the end of a pass are skipped in
        it."""
        drawn, whole = self._drawn(), len(self.lengths)
        for number in itertools.count():
            draw = random.Random(f"{self.seed}/{number}")
            rows = list(range(whole))
            if self.weights:
                rows = sorted(itertools.islice(drawn, whole - whole % self.batch_size))
            draw.shuffle(rows)
            chunk = BATCHES_SORTED_TOGETHER * self.batch_size
            found: list[list[int]] = []
            for start in range(0, len(rows), chunk):
                near = sorted(rows[start : start + chunk], key=lambda i: self.lengths[i])
                found += _full_batches(near, self.batch_size)
            draw.shuffle(found)
            yield from found

    def _drawn(self) -> Iterator[int]:
        """Rows without end, each from the source that is furthest below its share."""
        total = sum(self.weights.values())
        shares = {source: weight / total for source, weight in self.weights.items()}
        rows = {source: self._in_turn(source) for source in shares}
        taken = dict.fromkeys(shares, 0)
        for position in itertools.count(1):
            source = max(shares, key=lambda one: shares[one] * position - taken[one])
            taken[source] += 1
            yield next(rows[source])

    def _in_turn(self, source: int) -> Iterator[int]:
        """Rows of a source without end: each once in a round, in the round's own order."""
        rows = [index for index, found in enumerate(self.sources) if found == source]
        for number in itertools.count():
            yield from random.Random(f"{self.seed}/{source}/{number}").sample(rows, len(rows))


def _full_batches(rows: Sequence[int], size: int) -> list[list[int]]:
    cut = [list(rows[i : i + size]) for i in range(0, len(rows), size)]
    return [batch for batch in cut if len(batch) == size]


@dataclass
class RightPadded(DataCollatorForLanguageModeling):
    """Pads on the right, with an attention mask of ones.

    Under causal attention no real token sees the padding after it, and without a mask torch takes
    its faster causal kernel (8 % of a step, 1M parameters on CPU)."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch, with that mask. [B, T] each"""
        batch = super().torch_call(examples)
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
        return batch


class AnswerTrainer(StageTrainer, SFTTrainer):
    """SFTTrainer whose one epoch is the whole stage, in `BatchOrder`'s order, and whose batches are
    cut into micro-batches of `micro_batch_tokens`."""

    args: SFTConfig

    def __init__(self, *, settings: TrainerSettings, **kwargs: Any) -> None:
        self.num_trained = 0
        """Tokens with a label that this rank has trained on, in this process."""
        self._is_apart = not kwargs["args"].packing
        super().__init__(settings=settings, **kwargs)

    @property
    def rows(self) -> Dataset:
        """The rows that are trained."""
        assert isinstance(self.train_dataset, Dataset)
        return self.train_dataset

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        if self.args.packing:
            return super()._get_train_sampler(train_dataset)
        is_mixed = "source" in self.rows.column_names
        sources, weights = (
            list(self.rows[name]) if is_mixed else [] for name in ("source", "weight")
        )
        return BatchOrder(
            [len(ids) for ids in self.rows["input_ids"]],
            batch_size=self.args.per_device_train_batch_size * self.world.size,
            num_batches=self.args.max_steps,
            seed=self.args.seed,
            sources=sources,
            weights=dict(zip(sources, weights, strict=True)),
        )

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Forward and backward of a batch, in as many micro-batches as the fullest rank needs.

        Each is divided by the labels of the whole batch, so that their sum is the batch's mean."""
        self.card.take()
        self.num_trained += int((inputs["labels"][:, 1:] != -100).sum())
        if not self._is_apart:
            self._require_apart(model, inputs["input_ids"])
        if self.args.packing:
            return super().training_step(model, inputs, num_items_in_batch)
        rows, width = inputs["input_ids"].shape
        (most,) = self.world.max([float(num_cuts(self.settings, rows=rows, width=width))])
        micro_batches = cut_rows(inputs, num=min(int(most), rows))
        self.current_gradient_accumulation_steps = len(micro_batches)
        loss = torch.zeros((), device=self.args.device)
        for each in micro_batches:
            is_last = each is micro_batches[-1] or self.is_fsdp_enabled
            self.card.take()
            with nullcontext() if is_last else self.accelerator.no_sync(model):
                loss += super().training_step(model, each, num_items_in_batch)
            if each is not micro_batches[-1]:
                self.card.give()  # after the last one the optimizer steps
        return loss

    @torch.no_grad()
    def _require_apart(self, model: Any, ids_1N: torch.Tensor) -> None:
        """Raise ConfigError if the model lets conversations in a row see each other, as some of
        transformers do: the same tokens packed twice must get the same logits twice."""
        ids_1T = ids_1N[:, :PACKED_TWICE]
        places_1T = torch.arange(ids_1T.size(1), device=ids_1T.device)[None]
        model.eval()
        twice = {"input_ids": ids_1T.repeat(1, 2), "position_ids": places_1T.repeat(1, 2)}
        first_TV, second_TV = model(**twice, use_cache=False).logits[0].float().chunk(2)
        model.train()
        if not (first_TV - second_TV).norm() <= MAX_PACKED_GAP * first_TV.norm():
            policy: Any = self.model
            raise ConfigError(
                f"packing: found true for a model of type {policy.config.model_type}, whose "
                f"conversations see each other in a row; false"
            )
        self._is_apart = True


def num_cuts(settings: TrainerSettings, *, rows: int, width: int) -> int:
    """Number of micro-batches for a batch whose longest row has `width` tokens. Each stays within
    the budget, except for one of a single row."""
    budget = settings.micro_batch_tokens
    if budget is None:
        return math.ceil(1 / settings.micro_batch_scale)
    return math.ceil(rows / max(1, budget // width))


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
