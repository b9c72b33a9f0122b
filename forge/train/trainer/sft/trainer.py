"""TRL's SFTTrainer on rows that the host has tokenised.

What is trained is exactly what the host wrote: no template and no tokenizer runs here. Batches hold
rows of similar length, in an order fixed by the seed, however many ranks share a batch.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from forge.train.trainer.child.trainer import StageTrainer
from forge.train.trainer.sft.rows import BatchOrder, cut_rows

if TYPE_CHECKING:
    from torch.utils.data import Sampler
    from trl.trainer.sft_config import SFTConfig

    from forge.train.trainer.child.settings import TrainerSettings


@dataclass
class RightPadded(DataCollatorForLanguageModeling):
    """Pads on the right, with an attention mask of ones.

    Under causal attention no real token sees the padding after it, and without a mask torch takes
    its faster causal kernel (8 % of a step, 1M parameters on CPU).
    """

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
        super().__init__(settings=settings, **kwargs)

    @property
    def rows(self) -> Dataset:
        """The rows that are trained."""
        assert isinstance(self.train_dataset, Dataset)
        return self.train_dataset

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        if self.args.packing:
            return super()._get_train_sampler(train_dataset)
        return BatchOrder(
            [len(ids) for ids in self.rows["input_ids"]],
            batch_size=self.args.per_device_train_batch_size * self.world.size,
            num_batches=self.args.max_steps,
            seed=self.args.seed,
        )

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Forward and backward of a batch, in as many micro-batches as the fullest rank needs.

        Each is divided by the labels of the whole batch, so that their sum is the batch's mean.
        """
        self.card.take()
        self.num_trained += int((inputs["labels"][:, 1:] != -100).sum())
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


def num_cuts(settings: TrainerSettings, *, rows: int, width: int) -> int:
    """Number of micro-batches for a batch whose longest row has `width` tokens. Each stays within
    the budget, except for one of a single row."""
    budget = settings.micro_batch_tokens
    if budget is None:
        return math.ceil(1 / settings.micro_batch_scale)
    return math.ceil(rows / max(1, budget // width))
