"""An SFT stage, from its settings to its published weights.

Called by `__main__`. After the last step the weights are published once. SIGTERM: finish the step,
save, end.
"""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from trl.trainer.sft_config import SFTConfig

from forge.train.checkpoints import require_whole
from forge.train.trainer.child.card import reported_when_full, take_peak_bytes
from forge.train.trainer.child.control import StopFlag, SupervisorClient
from forge.train.trainer.child.parallel import join_process_group
from forge.train.trainer.child.settings import (
    PADDING,
    TrainerSettings,
    load_tokenizer,
    trainer_arguments,
)
from forge.train.trainer.child.trainer import Reporter
from forge.train.trainer.model.load import (
    finish_adapter,
    load_model,
    new_adapter,
    score_labelled_positions_only,
)
from forge.train.trainer.publish.probes import Tokens, probe
from forge.train.trainer.publish.weights import free_dir, save_weights, snapshot
from forge.train.trainer.sft.trainer import AnswerTrainer, RightPadded, read_rows

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 1.0


def train_answers(settings: TrainerSettings) -> None:
    """Train the stage to its end or to a SIGTERM."""
    assert settings.rows_path is not None
    stop = StopFlag()
    stop.install()
    rank, budget = int(os.environ.get("RANK", "0")), settings.micro_batch_tokens
    client = SupervisorClient(settings, stop=stop)
    last = settings.checkpoint
    if last is not None and rank == 0:
        require_whole(last)
    full = reported_when_full(client, rank=rank, micro_batch_tokens=budget)
    with client.refusals(), full:
        join_process_group()
        rows = read_rows(settings.rows_path)
        trainer = make_trainer(settings, rows=rows)
        trainer.add_callback(SftReporter(trainer, client=client, stop=stop))
        logger.info("training %d rows from %s", len(trainer.rows), last or settings.model_dir)
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        step = trainer.state.global_step
        if step < trainer.state.max_steps:
            logger.info("stopped after step %d of %d, saved", step, trainer.state.max_steps)
            return
        _publish(trainer, client, tokens=Tokens.of_rows(rows.to_list()))


def _publish(trainer: AnswerTrainer, client: SupervisorClient, *, tokens: Tokens | None) -> None:
    """Publish the weights as they are at the end. Collective."""
    model: Any = trainer.model
    settings, step = trainer.settings, trainer.step
    with trainer.card.taken():
        dtype = settings.publish_dtype
        weights = snapshot(model, dtype=dtype, keeps=trainer.world.is_main)
        scored = None if tokens is None else probe(model, tokens)
    if not trainer.world.is_main:
        return
    path = free_dir(settings.weights_dir, f"sft-{step:06d}")
    save_weights(model, path, model_dir=settings.model_dir, sync=True, weights=weights)
    client.publish(step=step, path=path, probe=scored)


def make_trainer(settings: TrainerSettings, *, rows: Dataset) -> AnswerTrainer:
    """The trainer for a stage's rows."""
    score_labelled_positions_only()
    stage = settings.stage
    packing = stage["packing"]
    rows_a_rank = max(1, min(stage["batch_size"], len(rows)) // settings.num_ranks)
    # Packed rows are one long row when a step gets them, so they are cut here.
    num_cuts = packed_cuts(settings, rows=rows_a_rank) if packing else 1
    arguments = SFTConfig(
        **trainer_arguments(settings),
        per_device_train_batch_size=rows_a_rank // num_cuts,
        gradient_accumulation_steps=num_cuts,
        max_length=stage["max_length"],
        packing=packing,
        dataset_kwargs=None if packing else {"skip_prepare_dataset": True},
    )
    model = load_model(settings)
    trainer = AnswerTrainer(
        settings=settings,
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=None if packing else RightPadded(pad_token_id=PADDING),
        processing_class=load_tokenizer(settings),
        peft_config=new_adapter(settings, model),
    )
    adapted: Any = trainer.model
    finish_adapter(adapted, settings)
    return trainer


def packed_cuts(settings: TrainerSettings, *, rows: int) -> int:
    """Number of micro-batches of a rank's packed rows: a divisor of `rows`."""
    budget = settings.stage["micro_batch_tokens"] or rows * settings.stage["max_length"]
    fits = max(1, int(budget * settings.micro_batch_scale) // settings.stage["max_length"])
    return next(n for n in range(1, rows + 1) if rows % n == 0 and rows // n <= fits)


class SftReporter(Reporter):
    """Also reports progress each second and ends the stage after SIGTERM. Rank 0 decides for all
    ranks."""

    def __init__(self, trainer: AnswerTrainer, *, client: SupervisorClient, stop: StopFlag) -> None:
        super().__init__(trainer, client=client, stop=stop)
        self._trainer = trainer
        self._reported_at = 0.0
        self._reported_tokens = 0.0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask for a log line when progress is due, for a checkpoint and the end after SIGTERM."""
        is_due, is_asked_to_stop = self._trainer.world.from_main(self._decide)
        if is_due or state.global_step >= state.max_steps:
            control.should_log = True
        if is_asked_to_stop:
            control.should_save = control.should_training_stop = True

    def _decide(self) -> tuple[bool, bool]:
        """(progress is due, SIGTERM arrived)."""
        return time.monotonic() - self._reported_at >= PROGRESS_EVERY_S, self._stop.is_set

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Report the metrics of the steps since the last report."""
        if logs is None or "loss" not in logs:
            return
        now, world = time.monotonic(), self._trainer.world
        (tokens,) = world.sum([float(self._trainer.num_trained)])
        metrics = {
            "train/loss/mean": logs["loss"],
            "train/grad_norm/value": logs["grad_norm"],
            "train/learning_rate/value": logs["learning_rate"],
            "train/token_accuracy/mean": logs["mean_token_accuracy"],
        }
        (peak,) = world.max([float(take_peak_bytes())])
        if peak:
            metrics["train/peak_bytes/max"] = peak
        if self._reported_at:
            seconds = now - self._reported_at
            metrics["train/tokens/per_s"] = (tokens - self._reported_tokens) / seconds
        self._reported_at, self._reported_tokens = now, tokens
        report = partial(self._client.progress, step=state.global_step, total=state.max_steps)
        if world.from_main(partial(report, metrics=metrics)).save:
            control.should_save = True
