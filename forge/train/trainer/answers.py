"""Supervised fine-tuning with TRL's SFTTrainer, on rows the host has tokenised.

What is trained is exactly what the host wrote: no template and no tokenizer runs here. Batches hold
rows of like length, in an order fixed by the seed. After the last step the weights are published
once. SIGTERM: finish the step, save, end.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from forge.train.durable import find_last_checkpoint
from forge.train.trainer.checkpoint import WholeCheckpoints
from forge.train.trainer.control import Control, StopFlag
from forge.train.trainer.rows import BatchOrder, read_rows
from forge.train.trainer.scoring import score_labelled_positions_only
from forge.train.trainer.settings import (
    Settings,
    load_model,
    load_tokenizer,
    new_adapter,
    trainer_arguments,
)
from forge.train.trainer.weights import free_dir, probe, save_weights

if TYPE_CHECKING:
    from torch.utils.data import Sampler

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 1.0


def train_answers(settings: Settings) -> None:
    """Train the stage to its end or to a SIGTERM."""
    assert settings.rows_path is not None
    stop = StopFlag()
    stop.install()
    control = Control(settings.control_socket, stop=stop)
    trainer = make_trainer(settings, rows=read_rows(settings.rows_path))
    trainer.add_callback(Reporter(control, stop=stop))
    last = find_last_checkpoint(settings.work_dir)
    logger.info("training %d rows from %s", len(trainer.rows), last or settings.model_dir)
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    step = trainer.state.global_step
    if step < trainer.state.max_steps:
        logger.info("stopped after step %d of %d, saved", step, trainer.state.max_steps)
        return
    path = free_dir(settings.weights_dir, f"sft-{step:06d}")
    model: Any = trainer.model
    save_weights(model, path, model_dir=settings.model_dir, sync=True)
    control.publish(step=step, path=path, probe=probe(model, None, seed=settings.seed))


def make_trainer(settings: Settings, *, rows: Dataset) -> AnswerTrainer:
    """The trainer for a stage's rows."""
    score_labelled_positions_only()
    stage, tokenizer = settings.stage, load_tokenizer(settings)
    packing, pad_id = stage["packing"], tokenizer.pad_token_id
    assert isinstance(pad_id, int)
    arguments = SFTConfig(
        **trainer_arguments(settings),
        per_device_train_batch_size=min(stage["batch_size"], len(rows)),
        max_length=stage["max_length"],
        packing=packing,
        dataset_kwargs=None if packing else {"skip_prepare_dataset": True},
    )
    return AnswerTrainer(
        model=load_model(settings),
        args=arguments,
        train_dataset=rows,
        data_collator=None if packing else RightPadded(pad_token_id=pad_id),
        processing_class=tokenizer,
        peft_config=new_adapter(settings),
    )


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
    """SFTTrainer whose one epoch is the whole stage, in `BatchOrder`'s order."""

    args: SFTConfig

    @property
    def rows(self) -> Dataset:
        assert isinstance(self.train_dataset, Dataset)
        return self.train_dataset

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        if self.args.packing:
            return super()._get_train_sampler(train_dataset)
        return BatchOrder(
            [len(ids) for ids in self.rows["input_ids"]],
            batch_size=self.args.per_device_train_batch_size,
            num_batches=self.args.max_steps,
            seed=self.args.seed,
        )

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Nobody reads it, and it walks all parameters."""
        return 0


class Reporter(TrainerCallback):
    """Progress each second, checkpoints as they are made, and the answer to SIGTERM."""

    def __init__(self, control: Control, *, stop: StopFlag) -> None:
        self._server = control
        self._stop = stop
        self._reported_at = 0.0
        self._reported_tokens = 0

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        if time.monotonic() - self._reported_at >= PROGRESS_EVERY_S:
            control.should_log = True
        if state.global_step >= state.max_steps:
            control.should_log = True
        if self._stop.is_set:
            control.should_save = control.should_training_stop = True

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
        now, tokens = time.monotonic(), int(logs["num_tokens"])
        metrics = {
            "train/loss/mean": logs["loss"],
            "train/grad_norm/value": logs["grad_norm"],
            "train/learning_rate/value": logs["learning_rate"],
            "train/token_accuracy/mean": logs["mean_token_accuracy"],
        }
        if self._reported_at:
            seconds = now - self._reported_at
            metrics["train/tokens/per_s"] = (tokens - self._reported_tokens) / seconds
        self._reported_at, self._reported_tokens = now, tokens
        self._server.progress(step=state.global_step, total=state.max_steps, metrics=metrics)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        path = Path(args.output_dir or ".", f"checkpoint-{state.global_step}")
        self._server.checkpoint(step=state.global_step, path=path)
