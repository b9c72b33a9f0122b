"""Supervised fine-tuning with TRL's SFTTrainer, on rows the host has tokenised.

What is trained is exactly what the host wrote: no template and no tokenizer runs here. Batches hold
rows of like length, in an order fixed by the seed, however many ranks share a batch. After the last
step the weights are published once. SIGTERM: finish the step, save, end.
"""

from __future__ import annotations

import logging
import math
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from forge.train.durable import find_last_checkpoint
from forge.train.trainer.child.arguments import trainer_arguments
from forge.train.trainer.child.card import SharedCard
from forge.train.trainer.child.checkpoint import WholeCheckpoints
from forge.train.trainer.child.control import StepOrders, StopFlag, SupervisorClient
from forge.train.trainer.child.memory import reported_when_full, take_peak_bytes
from forge.train.trainer.child.parallel import World, join_process_group
from forge.train.trainer.child.settings import TrainerSettings, load_tokenizer
from forge.train.trainer.model.adapters import new_adapter
from forge.train.trainer.model.load import load_model
from forge.train.trainer.model.scoring import score_labelled_positions_only
from forge.train.trainer.publish.probes import Tokens, probe
from forge.train.trainer.publish.weights import free_dir, save_weights, snapshot
from forge.train.trainer.sft.rows import BatchOrder, cut_rows, read_rows

if TYPE_CHECKING:
    from torch.utils.data import Sampler

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 1.0


def train_answers(settings: TrainerSettings) -> None:
    """Train the stage to its end or to a SIGTERM."""
    assert settings.rows_path is not None
    stop = StopFlag()
    stop.install()
    rank, budget = int(os.environ.get("RANK", "0")), micro_batch_tokens(settings)
    control = SupervisorClient(
        settings.control_socket, stop=stop, publish_timeout_s=settings.publish_timeout_s
    )
    with reported_when_full(control, rank=rank, micro_batch_tokens=budget):
        join_process_group()
        rows = read_rows(settings.rows_path)
        trainer = make_trainer(settings, rows=rows)
        trainer.add_callback(Reporter(trainer, control=control, stop=stop))
        last = find_last_checkpoint(settings.work_dir)
        logger.info("training %d rows from %s", len(trainer.rows), last or settings.model_dir)
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        step = trainer.state.global_step
        if step < trainer.state.max_steps:
            logger.info("stopped after step %d of %d, saved", step, trainer.state.max_steps)
            return
        _publish(trainer, settings, control, tokens=Tokens.of_rows(rows.to_list()))


def micro_batch_tokens(settings: TrainerSettings) -> int | None:
    """In use, a restart's scale included; None where a step is one micro-batch or a part of it."""
    budget = settings.stage["micro_batch_tokens"]
    return None if budget is None else max(1, int(budget * settings.micro_batch_scale))


def _publish(
    trainer: AnswerTrainer,
    settings: TrainerSettings,
    control: SupervisorClient,
    *,
    tokens: Tokens | None,
) -> None:
    """The weights as they are at the end. Collective."""
    model: Any = trainer.model
    step = trainer.state.global_step
    with trainer.card.taken():
        dtype = settings.publish_dtype
        weights = snapshot(model, dtype=dtype, keeps=trainer.world.is_main)
        scored = None if tokens is None else probe(model, tokens)
    if not trainer.world.is_main:
        return
    path = free_dir(settings.weights_dir, f"sft-{step:06d}")
    save_weights(model, path, model_dir=settings.model_dir, sync=True, weights=weights)
    control.publish(step=step, path=path, probe=scored)


def make_trainer(settings: TrainerSettings, *, rows: Dataset) -> AnswerTrainer:
    """The trainer for a stage's rows."""
    score_labelled_positions_only()
    stage, tokenizer = settings.stage, load_tokenizer(settings)
    packing, pad_id = stage["packing"], tokenizer.pad_token_id
    assert isinstance(pad_id, int)
    rows_a_rank = max(1, min(stage["batch_size"], len(rows)) // settings.num_ranks)
    # Packed rows are one long row by the time they get here: these are cut beforehand.
    num_cuts = packed_cuts(settings, rows=rows_a_rank) if packing else 1
    arguments = SFTConfig(
        **trainer_arguments(settings),
        per_device_train_batch_size=rows_a_rank // num_cuts,
        gradient_accumulation_steps=num_cuts,
        max_length=stage["max_length"],
        packing=packing,
        dataset_kwargs=None if packing else {"skip_prepare_dataset": True},
    )
    return AnswerTrainer(
        settings=settings,
        model=load_model(settings),
        args=arguments,
        train_dataset=rows,
        data_collator=None if packing else RightPadded(pad_token_id=pad_id),
        processing_class=tokenizer,
        peft_config=new_adapter(settings),
    )


def packed_cuts(settings: TrainerSettings, *, rows: int) -> int:
    """Micro-batches of a rank's packed rows: a divisor of `rows`."""
    budget = settings.stage["micro_batch_tokens"] or rows * settings.stage["max_length"]
    fits = max(1, int(budget * settings.micro_batch_scale) // settings.stage["max_length"])
    return next(n for n in range(1, rows + 1) if rows % n == 0 and rows // n <= max(fits, 1))


@dataclass
class RightPadded(DataCollatorForLanguageModeling):
    """Padding on the right, and an attention mask of ones.

    Under causal attention no real token sees the padding behind it, and without a mask torch takes
    its faster causal kernel (8 % of a step, 1M parameters on CPU).
    """

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().torch_call(examples)
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
        return batch


class AnswerTrainer(WholeCheckpoints, SFTTrainer):
    """SFTTrainer whose one epoch is the whole stage, in `BatchOrder`'s order, and whose batches are
    cut into micro-batches of `micro_batch_tokens`."""

    args: SFTConfig

    def __init__(self, *, settings: TrainerSettings, **kwargs: Any) -> None:
        self.world = World()
        self.settings = settings
        self.card = SharedCard(settings.shared_card)
        self.num_trained = 0
        """Tokens with a label that this rank has trained on, in this process."""
        super().__init__(**kwargs)

    @property
    def rows(self) -> Dataset:
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

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Nobody reads it, and it walks all parameters."""
        return 0


def num_cuts(settings: TrainerSettings, *, rows: int, width: int) -> int:
    """Micro-batches of a batch whose longest row has `width` tokens: none above the budget, but for
    one of a single row."""
    budget = micro_batch_tokens(settings)
    if budget is None:
        return math.ceil(1 / settings.micro_batch_scale)
    return math.ceil(rows / max(1, budget // width))


class Reporter(TrainerCallback):
    """Progress each second, checkpoints as they are made, and the answer to SIGTERM. What rank 0
    decides, all ranks do."""

    def __init__(
        self, trainer: AnswerTrainer, *, control: SupervisorClient, stop: StopFlag
    ) -> None:
        self._trainer = trainer
        self._world = trainer.world
        self._server = control
        self._stop = stop
        self._reported_at = 0.0
        self._reported_tokens = 0.0

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        self._trainer.card.give()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        is_due, is_asked_to_stop = self._world.from_main(self._decide)
        if is_due or state.global_step >= state.max_steps:
            control.should_log = True
        if is_asked_to_stop:
            control.should_save = control.should_training_stop = True

    def _decide(self) -> tuple[bool, bool]:
        """Whether it is time to report, and to end."""
        return time.monotonic() - self._reported_at >= PROGRESS_EVERY_S, self._stop.is_set

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs is None or "loss" not in logs:
            return
        now = time.monotonic()
        (tokens,) = self._world.sum([float(self._trainer.num_trained)])
        metrics = {
            "train/loss/mean": logs["loss"],
            "train/grad_norm/value": logs["grad_norm"],
            "train/learning_rate/value": logs["learning_rate"],
            "train/token_accuracy/mean": logs["mean_token_accuracy"],
        }
        (peak,) = self._world.max([float(take_peak_bytes())])
        if peak:
            metrics["train/peak_bytes/max"] = peak
        if self._reported_at:
            seconds = now - self._reported_at
            metrics["train/tokens/per_s"] = (tokens - self._reported_tokens) / seconds
        self._reported_at, self._reported_tokens = now, tokens
        if self._world.from_main(lambda: self._tell(state, metrics)).save:
            control.should_save = True

    def _tell(self, state: TrainerState, metrics: dict[str, float]) -> StepOrders:
        """On rank 0."""
        return self._server.progress(step=state.global_step, total=state.max_steps, metrics=metrics)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        if not self._world.is_main:
            return
        path = Path(args.output_dir or ".", f"checkpoint-{state.global_step}")
        self._server.checkpoint(step=state.global_step, path=path)
