"""GRPO with TRL's GRPOTrainer on samples that were played, judged and rewarded elsewhere.

    take ──▶ batch ──▶ micro-batches ──▶ TRL's loss ──▶ optimizer step(s) ──▶ trained, publish

TRL has the loss, the optimizer, PEFT, schedules and checkpoints. Its generation batch
(`rollout_func`, groups of fixed size, rewards, padding to the longest of all) is stepped over at
one seam: `get_batch_samples` hands the loop one batch an optimizer step, and `training_step` runs
its micro-batches. So a step may have any number of samples, and every `loss_type` averages over the
whole batch, however it is cut. One process; several ranks would each need a share.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import use_adapter

from forge.train.batch import read_batch
from forge.train.durable import is_kept
from forge.train.trainer.checkpoint import WholeCheckpoints
from forge.train.trainer.microbatches import MicroBatch, cut_batch
from forge.train.trainer.stepstats import StepStats
from forge.train.trainer.weights import free_dir, probe, save_weights

if TYPE_CHECKING:
    from forge.records import Sample
    from forge.train.trainer.control import Batch, Control
    from forge.train.trainer.settings import Settings

logger = logging.getLogger(__name__)


class TurnTrainer(WholeCheckpoints, GRPOTrainer):
    """GRPOTrainer on batches taken from control.sock."""

    def __init__(self, *, settings: Settings, control: Control, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.settings = settings
        self.server = control
        self.version: int | None = None
        """Policy version of the weights as published; None before this process published any."""
        self.stats = StepStats(clip_low=self.epsilon_low, clip_high=self.epsilon_high)
        self.taken: Batch | None = None
        self._cut: list[MicroBatch] = []
        self._passes_left = 0
        self._current: MicroBatch | None = None

    @property
    def policy(self) -> Any:
        """The model, which TRL's types know too many shapes of."""
        return self.model

    @property
    def updates_per_step(self) -> int:
        return self.settings.stage["updates_per_batch"]

    @property
    def step(self) -> int:
        """Batches trained. TRL's global_step counts optimizer updates."""
        return self.state.global_step // self.updates_per_step

    def get_train_dataloader(self) -> DataLoader:
        """Only counts updates; the samples come from `get_batch_samples`."""
        updates: Any = range(self.args.max_steps)
        return DataLoader(updates, batch_size=1)

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, None]:
        """One batch, for one update. None left: an empty list, and the loop ends after saving."""
        if self._passes_left == 0 and not self._take():
            self.control.should_training_stop = True
            self.control.should_save = self._is_unsaved
            return [], None
        self._passes_left -= 1
        self.stats.begin_pass()
        return [{"micro_batches": self._cut}], None

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Forward and backward of every micro-batch; returns the loss of the whole batch."""
        loss = torch.zeros((), device=self.args.device)
        for micro_batch in inputs["micro_batches"]:
            self._current = micro_batch
            loss += super().training_step(model, dict(micro_batch.inputs), num_items_in_batch)
        self.stats.loss = loss.item()
        self._metrics["train"].clear()
        return loss

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """To the device, past TRL's generation; with the reference's scores where it has one."""
        inputs = Trainer._prepare_inputs(self, inputs)
        if self.beta != 0.0:
            inputs["ref_per_token_logps"] = self._reference_logps(inputs)
        return inputs

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's mean over a micro-batch's rows or tokens, weighted by its share of the batch.

        dapo needs no weight: it divides by `num_items_in_batch`, the tokens of the whole batch.
        """
        assert self._current is not None
        loss = super()._compute_loss(model, inputs)
        if self.loss_type == "bnpo":
            return loss * (self._current.num_tokens / sum(m.num_tokens for m in self._cut))
        if self.loss_type in ("grpo", "dr_grpo"):
            return loss * (len(self._current.samples) / sum(len(m.samples) for m in self._cut))
        return loss

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Scores of the trained tokens only, 0 elsewhere. [B, C]"""
        assert self._current is not None
        trained_BC = self._current.inputs["tool_mask"].to(input_ids.device) == 1
        labels_BT = torch.full_like(input_ids, -100)
        ids_BC = input_ids[:, -logits_to_keep:]
        labels_BT[:, -logits_to_keep:] = ids_BC.masked_fill(~trained_BC, -100)
        wants_router = {"output_router_logits": True} if kwargs.get("compute_aux_loss") else {}
        with self.accelerator.autocast():
            outputs = model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                labels=labels_BT,
                fused_lm_head=True,
                **wants_router,
            )
        logps_BC = outputs.log_probs[:, -logits_to_keep:]
        if not torch.is_grad_enabled():  # the reference: its head computes no entropies
            return logps_BC, None, outputs.aux_loss
        entropies_BC = outputs.entropy[:, -logits_to_keep:]
        self.stats.add(self._current, logps_BC.detach(), entropies_BC.detach())
        return logps_BC, entropies_BC, outputs.aux_loss

    def _take(self) -> bool:
        """Wait for a batch. False when there is none to come, or SIGTERM asked us to stop."""
        batch = self.server.take(step=self.step)
        if batch is None:
            return False
        samples = read_batch(batch.samples_path)
        if not samples:
            raise ValueError(f"{batch.samples_path}: a batch without samples")
        self.taken = batch
        self._cut = cut_batch(samples, max_tokens=self.settings.stage["micro_batch_tokens"])
        self._passes_left = self.updates_per_step
        newest = max(s.policy_version for s in samples)
        self.stats.start(batch, version=newest if self.version is None else self.version)
        return True

    def finish_step(self) -> None:
        """Acknowledge the batch, and publish what it made of the weights."""
        assert self.taken is not None
        self.server.trained(step=self.taken.step, metrics=self.stats.metrics())
        self.publish()

    def publish(self) -> None:
        """Offer the weights as they are to every replica."""
        started = time.monotonic()
        path = free_dir(self.settings.weights_dir, f"grpo-{self.step:06d}")
        stage = self.settings.stage
        sync = is_kept(self.step, steps=stage["steps"], save_every=stage["save_every"])
        save_weights(self.policy, path, model_dir=self.settings.model_dir, sync=sync)
        shortest = min((m.samples[-1] for m in self._cut), key=_num_tokens, default=None)
        tokens = probe(self.policy, shortest, seed=self.settings.seed)
        saved_s = time.monotonic() - started
        self.version = self.server.publish(step=self.step, path=path, probe=tokens)
        published_s = time.monotonic() - started
        logger.info(
            "step %d: version %d, saved in %.3f s, published in %.3f s",
            self.step,
            self.version,
            saved_s,
            published_s,
        )

    @property
    def _is_unsaved(self) -> bool:
        path = Path(self.settings.work_dir, f"checkpoint-{self.state.global_step}")
        return self.state.global_step > 0 and not path.exists()

    def _reference_logps(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Log probabilities under the model that the stage began with. [B, C]"""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.ones_like(ids)
        width = inputs["completion_ids"].size(1)
        score = self._get_per_token_logps_and_entropies
        with torch.no_grad():
            if self.ref_model is not None:
                return score(self.ref_model, ids, mask, width)[0]
            name = "ref" if "ref" in self.policy.peft_config else None
            with use_adapter(self.policy, adapter_name=name):
                return score(self.policy, ids, mask, width)[0]

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """For the metrics. An update that is not a number would destroy the weights: left out."""
        norm: Any = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.stats.grad_norm = float(norm)
        self.stats.learning_rate = self._get_learning_rate()  # the scheduler has not stepped yet
        if not self.stats.check_update():
            logger.error("update left out: gradient norm %s, loss %s", norm, self.stats.loss)
            model.zero_grad(set_to_none=True)
        return norm

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Nobody reads it, and it wants TRL's inputs."""
        return 0


def _num_tokens(sample: Sample) -> int:
    return len(sample.prompt_ids) + len(sample.completion_ids)
