"""The callback that both stages hang into their trainer; each adds what it reports at the end of a
step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

if TYPE_CHECKING:
    from forge.train.trainer.child.control import StopFlag, SupervisorClient
    from forge.train.trainer.child.trainer import StageTrainer


class Reporter(TrainerCallback):
    """Releases a shared GPU after the optimizer's step and announces checkpoints."""

    def __init__(self, trainer: StageTrainer, *, client: SupervisorClient, stop: StopFlag) -> None:
        self._stage_trainer = trainer
        self._client = client
        self._stop = stop

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The last micro-batch took the GPU; the step is done with it."""
        self._stage_trainer.card.give()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Rank 0 announces the checkpoint, which is whole."""
        trainer = self._stage_trainer
        if trainer.world.is_main:
            path = trainer.settings.work_dir / f"checkpoint-{state.global_step}"
            self._client.checkpoint(step=trainer.step, path=path)
