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

from forge.train.checkpoints import require_whole
from forge.train.trainer.child.card import reported_when_full, take_peak_bytes
from forge.train.trainer.child.control import StopFlag, SupervisorClient
from forge.train.trainer.child.parallel import join_process_group
from forge.train.trainer.child.settings import TrainerSettings, trainer_arguments
from forge.train.trainer.child.trainer import Reporter
from forge.train.trainer.model.load import load_model
from forge.train.trainer.publish.probes import Tokens, probe
from forge.train.trainer.publish.weights import free_dir, save_weights, snapshot
from forge.train.trainer.sft.trainer import AnswerTrainer, TokenRow, read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        _publish(trainer, client, tokens=probe_tokens(rows))


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


def make_trainer(settings: TrainerSettings, *, rows: Sequence[TokenRow]) -> AnswerTrainer:
    """The trainer for a stage's rows."""
    return AnswerTrainer(
        rows=rows,
        settings=settings,
        model=load_model(settings),
        arguments=trainer_arguments(settings),
    )


def probe_tokens(rows: Sequence[TokenRow]) -> Tokens | None:
    """Tokens of the row with the most trained ones; None if no row has any."""
    row = max(rows, key=lambda row: len(row.trained))
    return Tokens.of_row(row.ids.tolist(), int(row.trained[0])) if len(row.trained) else None


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
            "train/token_accuracy/mean": self._trainer.take_accuracy(),
        }
        if seconds := self._trainer.take_checkpoint_s():
            metrics["train/checkpoint/seconds"] = seconds
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
