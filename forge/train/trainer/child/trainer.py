"""The common part of both trainers, a mixin for TRL's: checkpoints that are complete or absent, the
ranks, the hold on a shared GPU. And their callback, to which each stage adds its own reports. The
supervisor removes old checkpoints.

A stock save writes straight into `checkpoint-N`, `trainer_state.json` last: killed midway it leaves
a directory that resume picks and fails on (measured, transformers 5.23). Here it is written under
`.staging`, with a manifest, fsynced and renamed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from forge.train.checkpoints import STAGING, checkpoint_dir, put_in_place, write_manifest
from forge.train.trainer.child.card import SharedCard
from forge.train.trainer.child.parallel import World

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

    from forge.train.trainer.child.control import StopFlag, SupervisorClient
    from forge.train.trainer.child.settings import TrainerSettings

    Base = Trainer
else:
    Base = object


class StageTrainer(Base):
    """Mixin for a TRL trainer; comes before it in the bases. Make it after `join_process_group`."""

    _is_staging = False
    saved: Path | None
    """The newest checkpoint; at first the one that is continued."""

    def __init__(self, *, settings: TrainerSettings, **kwargs: Any) -> None:
        self.settings = settings
        self.saved = settings.checkpoint
        self.world = World()
        self.card = SharedCard(settings.shared_card)
        super().__init__(**kwargs)

    @property
    def step(self) -> int:
        """Steps of the stage that are trained."""
        return self.state.global_step

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """0: nothing reads the number, and computing it walks all parameters."""
        return 0

    def create_model_card(self, *args: object, **kwargs: object) -> None:
        """No model card: TRL would write one, with a template to load, at every save."""

    def _get_output_dir(self, trial: Any) -> str:
        """Directory into which the stock code writes `checkpoint-N`."""
        final = super()._get_output_dir(trial)
        return str(Path(final, STAGING)) if self._is_staging else final

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """All ranks write into the staging directory of their machine; rank 0 adds what only others
        have, and moves it to its place."""
        work_dir = Path(super()._get_output_dir(trial))
        staging = work_dir / STAGING
        if self.world.is_first_here:
            shutil.rmtree(staging, ignore_errors=True)
        self.world.wait()
        self._is_staging = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._is_staging = False
        written = staging / f"checkpoint-{self.state.global_step}"
        own = written / f"rng_state_{self.world.rank}.pth"
        states = self.world.to_main((own.name, own.read_bytes() if own.is_file() else b""))
        if self.world.is_main:
            for name, state in states:
                if state:
                    (written / name).write_bytes(state)
            write_manifest(written)
            put_in_place(written, checkpoint_dir(work_dir, self.step))
        self.saved = checkpoint_dir(work_dir, self.step)
        self.world.wait()


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
            path = checkpoint_dir(trainer.settings.work_dir, trainer.step)
            self._client.checkpoint(step=trainer.step, path=path)
