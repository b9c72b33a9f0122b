"""Checkpoints that are whole or absent, mixed into TRL's trainers.

A stock save writes straight into `checkpoint-N`, `trainer_state.json` last: killed midway it leaves
a directory that resume picks and fails on (measured, transformers 5.23). Here it is written under
`.staging`, fsynced and renamed.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.train.durable import STAGING, checkpoints, put_in_place

if TYPE_CHECKING:
    from transformers import Trainer

    from forge.train.trainer.child.parallel import World

    Base = Trainer
else:
    Base = object

logger = logging.getLogger(__name__)

# The last for resume, one more in case its step turns out to be the one that diverged.
KEEP_CHECKPOINTS = 2


class WholeCheckpoints(Base):
    """Trainer mixin, before the trainer class. `world` has the ranks: all write into the staging
    directory, rank 0 makes it and moves it to its place."""

    world: World

    _is_staging = False

    def _get_output_dir(self, trial: Any) -> str:
        """Where the trainer's own code puts `checkpoint-N`."""
        final = super()._get_output_dir(trial)
        return str(Path(final, STAGING)) if self._is_staging else final

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        work_dir = Path(super()._get_output_dir(trial))
        staging = work_dir / STAGING
        if self.world.is_main:
            shutil.rmtree(staging, ignore_errors=True)
        self.world.wait()
        self._is_staging = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._is_staging = False
        self.world.wait()
        if self.world.is_main:
            name = f"checkpoint-{self.state.global_step}"
            put_in_place(staging / name, work_dir / name)
            self._rotate(work_dir)
        self.world.wait()

    def _rotate(self, work_dir: Path) -> None:
        for old in checkpoints(work_dir)[:-KEEP_CHECKPOINTS]:
            logger.info("removing %s", old)
            shutil.rmtree(old)

    def create_model_card(self, *args: object, **kwargs: object) -> None:
        """No model card: TRL would write one, with a template to load, at every save."""
