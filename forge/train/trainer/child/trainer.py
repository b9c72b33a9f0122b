"""The common part of both trainers on transformers' Trainer: a batch's micro-batches, checkpoints
that are complete or absent, the ranks, the hold on a shared GPU. And their callback, to which each
stage adds its own reports. The supervisor removes old checkpoints.

    next batch ──▶ sequences ──▶ micro-batches ──▶ scores ──▶ loss of each ──▶ optimizer step

transformers has the loop, optimizers, schedules, accelerate's DDP and FSDP2. A stage gives batches
of any number of sequences and the loss of a micro-batch, whose tokens have their weights in the
whole batch: so the sum over micro-batches and ranks does not depend on the cut. Between two steps
the host waits for the GPU only where a metric is read.

A stock save writes straight into `checkpoint-N`, `trainer_state.json` last: killed midway it leaves
a directory that resume picks and fails on (measured, transformers 5.23). Here it is written under
`.staging`, with a manifest, fsynced and renamed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import SCHEDULER_NAME

from forge.errors import ConfigError
from forge.train.checkpoints import STAGING, checkpoint_dir, put_in_place, write_manifest
from forge.train.trainer.child.card import SharedCard
from forge.train.trainer.child.optimizer import rounding_optimizer
from forge.train.trainer.child.parallel import World
from forge.train.trainer.packed.head import Scores, add_head, router_weight, score
from forge.train.trainer.packed.sequences import MicroBatch, cut_batch

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState

    from forge.train.trainer.child.control import StopFlag, SupervisorClient
    from forge.train.trainer.child.settings import TrainerSettings
    from forge.train.trainer.packed import sequences


def with_exact_sums(policy: Any) -> Any:
    """accelerate's policy of shards with gradients that are summed over the ranks in f32, not in
    bf16, and with outputs as they are: in bf16 a log-probability of -4 is 0.03 off."""
    return replace(policy, reduce_dtype=torch.float32, output_dtype=None)


class StageTrainer(Trainer):
    """Trains the micro-batches of each batch. Make it after `join_process_group`."""

    _is_staging = False
    saved: Path | None
    """The newest checkpoint; at first the one that is continued."""

    def __init__(self, *, settings: TrainerSettings, model: Any, arguments: dict[str, Any]) -> None:
        self.settings = settings
        self.saved = settings.checkpoint
        self._checkpoint_s = 0.0
        self.world = World()
        self.card = SharedCard(settings.shared_card)
        add_head(model, temperature=settings.temperature)
        super().__init__(
            model=model,
            args=TrainingArguments(**arguments),
            optimizer_cls_and_kwargs=rounding_optimizer(settings, model),
        )
        if self.is_fsdp_enabled:
            plugin: Any = self.accelerator.state.fsdp_plugin
            plugin.mixed_precision_policy = with_exact_sums(plugin.mixed_precision_policy)
        self.router_weight = router_weight(model)

    def cut(self, batch: Sequence[sequences.Sequence]) -> list[MicroBatch]:
        """This rank's micro-batches of a whole batch."""
        return cut_batch(
            batch,
            max_tokens=self.settings.micro_batch_tokens,
            layout=self.settings.layout,
            rank=self.world.rank,
            num_ranks=self.world.size,
        )

    def next_batch(self) -> list[MicroBatch] | None:
        """The micro-batches of the next optimizer step; None if there are none to come."""
        raise NotImplementedError

    def prepared(self, micro_batch: MicroBatch) -> MicroBatch:
        """The micro-batch with further values that its loss needs."""
        return micro_batch

    def loss_of(self, micro_batch: MicroBatch, scores: Scores) -> torch.Tensor:
        """The loss of a micro-batch, as its part of the whole batch's."""
        raise NotImplementedError

    def get_train_dataloader(self) -> DataLoader:
        """Only counts updates; the batches come from `next_batch`."""
        updates: Any = range(self.args.max_steps)
        return DataLoader(updates, batch_size=1)

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, None]:
        """One batch for one update. An empty list after the last: the loop saves and ends."""
        micro_batches = self.next_batch()
        if micro_batches is None:
            self.control.should_training_stop = True
            self.control.should_save = self.is_unsaved
            return [], None
        return [micro_batches], None

    @property
    def is_unsaved(self) -> bool:
        """True if steps were trained since the last checkpoint."""
        return self.step > 0 and self.saved != checkpoint_dir(self.settings.work_dir, self.step)

    def training_step(
        self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Forward and backward of every micro-batch; returns this rank's part of the batch's loss,
        times the number of ranks, whose gradients are averaged."""
        loss = torch.zeros((), device=self.args.device)
        model.train()
        for micro_batch in inputs:
            # FSDP2 sums its shards each time: waiting would take memory for all gradients whole.
            is_last = micro_batch is inputs[-1] or self.is_fsdp_enabled
            self.card.take()
            with nullcontext() if is_last else self.accelerator.no_sync(model):
                loss += self._trained(model, micro_batch.on(self.args.device))
            if micro_batch is not inputs[-1]:
                self.card.give()  # after the last one the optimizer steps
        return loss

    def _trained(self, model: torch.nn.Module, micro_batch: MicroBatch) -> torch.Tensor:
        micro_batch = self.prepared(micro_batch)
        scores = score(model, micro_batch, router_weight=self.router_weight)
        loss = self.loss_of(micro_batch, scores)
        if scores.router_loss is not None:
            loss = loss + scores.router_loss * (self.router_weight * micro_batch.share)
        loss = loss * self.world.size
        self.accelerator.backward(loss)
        return loss.detach()

    @property
    def step(self) -> int:
        """Steps of the stage that are trained."""
        return self.state.global_step

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """0: nothing reads the number, and computing it walks all parameters."""
        return 0

    def _get_output_dir(self, trial: Any) -> str:
        """Directory into which the stock code writes `checkpoint-N`."""
        final = super()._get_output_dir(trial)
        return str(Path(final, STAGING)) if self._is_staging else final

    def require_disk(self) -> None:
        """Raise ConfigError if the disk cannot hold a checkpoint."""
        trained = [p for p in self.model.parameters() if p.requires_grad]  # type: ignore[union-attr]
        weights = sum(p.numel() * p.itemsize for p in trained)
        small = self.settings.stage["optimizer"] == "adamw_8bit"
        moments = 2 * (sum(p.numel() for p in trained) if small else weights)
        needed = weights + moments * (self.settings.stage["save"] == "all")
        work_dir = self.settings.work_dir
        work_dir.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(work_dir).free
        if self.world.is_main and needed > free:
            raise ConfigError(
                f"save: found {free / 1e9:.1f} GB free in {work_dir}, and a checkpoint takes "
                f'{needed / 1e9:.1f} GB; free space, or "weights" ({weights / 1e9:.1f} GB)'
            )

    def take_checkpoint_s(self) -> float:
        """Seconds for which steps have waited for checkpoints since the last call."""
        found, self._checkpoint_s = self._checkpoint_s, 0.0
        return found

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Moments, unless only weights are saved, and the schedule."""
        scheduler: Any = self.lr_scheduler
        if self.settings.stage["save"] == "all" or self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)  # for FSDP the weights, too
        elif self.args.should_save:
            torch.save(scheduler.state_dict(), Path(output_dir, SCHEDULER_NAME))
        if self.settings.stage["save"] == "weights":
            for path in Path(output_dir).glob("optimizer*"):
                path.unlink(missing_ok=True)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Also continue the schedule of a checkpoint without moments, which transformers skips."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or list(Path(checkpoint).glob("optimizer*")):
            return
        scheduler: Any = self.lr_scheduler
        optimizer: Any = self.optimizer
        state = torch.load(Path(checkpoint, SCHEDULER_NAME), weights_only=True)
        scheduler.load_state_dict(state)
        for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """All ranks write into the staging directory of their machine; rank 0 adds what only others
        have, and moves it to its place."""
        began = time.monotonic()
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
        self._checkpoint_s += time.monotonic() - began


class Reporter(TrainerCallback):
    """Releases a shared GPU after the optimizer's step and announces checkpoints."""

    def __init__(self, trainer: StageTrainer, *, client: SupervisorClient, stop: StopFlag) -> None:
        self._stage_trainer = trainer
        self._client = client
        self._stop = stop

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask the disk before the first checkpoint."""
        self._stage_trainer.require_disk()

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
