"""TRL's GRPOTrainer on samples that were played, judged and rewarded elsewhere.

    take ──▶ batch ──▶ micro-batches ──▶ TRL's loss ──▶ optimizer step(s) ──▶ trained, publish

TRL has the loss, the optimizer, PEFT, schedules and checkpoints. Its generation batch
(`rollout_func`, groups of fixed size, rewards, padding to the longest of all) is bypassed at one
seam: `get_batch_samples` gives the loop one batch for each optimizer step, and `training_step` runs
its micro-batches. So a step may have any number of samples, and every `loss_type` averages over the
whole batch, however it is cut and over however many ranks: each rank gets the whole batch and
trains its share. Rank 0 alone speaks to control.sock and reads the run's files.

Shapes: B rows, T tokens, C tokens after the common prompt, M trained tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import Trainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import use_adapter

from forge.train.batch import read_batch
from forge.train.checkpoints import checkpoint_dir
from forge.train.trainer.child.card import take_peak_bytes
from forge.train.trainer.child.parallel import LocalNumbers
from forge.train.trainer.child.trainer import StageTrainer
from forge.train.trainer.grpo.microbatches import MicroBatch, cut_batch
from forge.train.trainer.grpo.stepstats import StepStats
from forge.train.trainer.publish.probes import Prober, read_tokens
from forge.train.trainer.publish.weights import Publisher, snapshot, write_and_offer

if TYPE_CHECKING:
    from forge.records import Sample
    from forge.train.trainer.child.control import StepOrders, SupervisorClient, TakenBatch
    from forge.train.trainer.child.settings import TrainerSettings

logger = logging.getLogger(__name__)


class TurnTrainer(StageTrainer, GRPOTrainer):
    """GRPOTrainer on batches taken from control.sock."""

    def __init__(
        self, *, settings: TrainerSettings, client: SupervisorClient, **kwargs: Any
    ) -> None:
        super().__init__(settings=settings, **kwargs)
        self.client = client
        self.publisher = Publisher()
        self.stats = StepStats(clip_low=self.epsilon_low, clip_high=self.epsilon_high)
        self.taken: TakenBatch | None = None
        probe_path = settings.work_dir / "probe.json"
        tokens = self.world.from_main(partial(read_tokens, probe_path))
        self._prober = Prober(probe_path, tokens)
        self._cut: list[MicroBatch] = []
        self._passes_left = 0
        self._current: MicroBatch | None = None

    @property
    def policy(self) -> Any:
        """The model. TRL's own attribute is typed as a union of too many classes."""
        return self.model

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates on each batch."""
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
        """One batch for one update. An empty list after the last: the loop saves and ends."""
        if self._passes_left == 0 and not self._take():
            self.control.should_training_stop = True
            self.control.should_save = self._is_unsaved
            return [], None
        self._passes_left -= 1
        self.stats.num_passes += 1
        return [{"micro_batches": self._cut}], None

    def _take(self) -> bool:
        """Wait for a batch. False if there is none to come, or after SIGTERM."""
        batch, samples, version = self.world.from_main(self._ask)
        if batch is None:
            return False
        if not samples:
            raise ValueError(f"{batch.samples_path}: a batch without samples")
        self.taken = batch
        if self.settings.publishes and not self._prober.is_ready:
            with self.card.taken():
                self._prober.choose(samples, self.policy, keeps=self.world.is_main)
        max_tokens = self.settings.micro_batch_tokens
        assert max_tokens is not None
        self._cut = cut_batch(
            samples,
            max_tokens=max_tokens,
            rank=self.world.rank,
            num_ranks=self.world.size,
            shares_prefixes=self.settings.shares_prefixes,
        )
        self._passes_left = self.updates_per_step
        newest = max(s.policy_version for s in samples)
        self.stats.start(batch, version=newest if version is None else version)
        return True

    def _ask(self) -> tuple[TakenBatch | None, Sequence[Sample], int | None]:
        """On rank 0, whose machine has the file: the next batch with its samples, and the version
        of the weights that it is trained from."""
        batch = self.client.take(step=self.step)
        samples = () if batch is None else read_batch(batch.samples_path)
        return batch, samples, self.publisher.weights_version

    @property
    def _is_unsaved(self) -> bool:
        return self.step > 0 and self.saved != checkpoint_dir(self.settings.work_dir, self.step)

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Forward and backward of every micro-batch; returns the loss of the whole batch."""
        loss = torch.zeros((), device=self.args.device)
        micro_batches = inputs["micro_batches"]
        for micro_batch in micro_batches:
            self._current = micro_batch
            # FSDP2 sums its shards each time: waiting would take memory for all gradients whole.
            is_last = micro_batch is micro_batches[-1] or self.is_fsdp_enabled
            self.card.take()
            with nullcontext() if is_last else self.accelerator.no_sync(model):
                loss += super().training_step(model, dict(micro_batch.inputs), num_items_in_batch)
            if micro_batch is not micro_batches[-1]:
                self.card.give()  # after the last one the optimizer steps
        (total,) = self.world.sum([loss.item()])
        self.stats.loss = total / self.world.size  # each rank's is scaled for their mean
        self._metrics["train"].clear()
        return loss

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Move to the device, past TRL's generation; add the reference's scores if there is one."""
        inputs = Trainer._prepare_inputs(self, inputs)
        self.stats.reference_BC = self._reference_logps(inputs) if self.beta else None
        if self.beta:
            inputs["ref_per_token_logps"] = self.stats.reference_BC
        return inputs

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's mean over a micro-batch's rows or tokens, weighted by its share of the batch.

        dapo needs no weight: it divides by `num_items_in_batch`, the tokens of the whole batch.
        Gradients are averaged over the ranks, so each rank's loss is multiplied by their number."""
        assert self._current is not None
        accelerator = self.accelerator
        self.accelerator = LocalNumbers(accelerator)
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self.accelerator = accelerator
        if self.loss_type == "bnpo":
            return loss * (self._current.token_share * self.world.size)
        if self.loss_type in ("grpo", "dr_grpo"):
            return loss * (self._current.row_share * self.world.size)
        return loss * 0.0 if self._current.is_filler else loss

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
        row, device = self._current.row, input_ids.device
        trained_BC = self._current.inputs["tool_mask"].to(device) == 1
        if row is None:
            labels_BT = torch.full_like(input_ids, -100)
            ids_BC = input_ids[:, -logits_to_keep:]
            labels_BT[:, -logits_to_keep:] = ids_BC.masked_fill(~trained_BC, -100)
            asked = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels_BT}
        else:
            asked = {name: tensor.to(device) for name, tensor in row.inputs.items()} | row.longest
        router = {"output_router_logits": True} if kwargs.get("compute_aux_loss") else {}
        with self.accelerator.autocast():
            outputs = model(**asked, fused_lm_head=True, **router)

        def placed(scores: torch.Tensor) -> torch.Tensor:
            if row is None:
                return scores[:, -logits_to_keep:]
            zeros_BC = torch.zeros(trained_BC.shape, device=device)
            scores_M = scores[0, row.token_index.to(device)]
            return zeros_BC.masked_scatter(trained_BC, scores_M.to(zeros_BC.dtype))

        logps_BC, aux_loss = placed(outputs.log_probs), self._weighted(outputs.aux_loss)
        if not torch.is_grad_enabled():  # the reference: its head computes no entropies
            return logps_BC, None, aux_loss
        entropies_BC = placed(outputs.entropy)
        self.stats.add(self._current, logps_BC.detach(), entropies_BC.detach())
        return logps_BC, entropies_BC, aux_loss

    def _weighted(self, aux_loss: torch.Tensor | None) -> torch.Tensor | None:
        """A mixture's router loss, weighted for dapo; for other kinds `_compute_loss` weights the
        sum of both losses."""
        assert self._current is not None
        if aux_loss is None or self.loss_type != "dapo":
            return aux_loss
        return aux_loss * (self._current.token_share * self.world.size)

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
        """Note it for the metrics. An update that is not finite would destroy the weights, so it is
        skipped."""
        norm: Any = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.stats.grad_norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        self.stats.learning_rate = self._get_learning_rate()  # the scheduler has not stepped yet
        if not self.stats.check_update():
            logger.error("update skipped: gradient norm %s, loss %s", norm, self.stats.loss)
            model.zero_grad(set_to_none=True)
        return norm

    def finish_step(self) -> StepOrders:
        """Report the batch as trained, and publish the new weights. Collective."""
        assert self.taken is not None
        (peak,) = self.world.max([float(take_peak_bytes())])
        metrics = self.stats.metrics(self.world)
        if peak:
            metrics["train/peak_bytes/max"] = peak
        if peak and self.settings.shared_card is not None:
            torch.cuda.empty_cache()  # other users of the GPU may take what only this step needed
        report = partial(self.client.trained, step=self.taken.step, metrics=metrics)
        orders = self.world.from_main(report)
        if orders.evaluate or self.settings.is_published(self.step):
            may_overlap = self.settings.is_published_in_background(self.step)
            self.publish(in_background=may_overlap and not orders.evaluate)
        return orders

    def publish(self, *, in_background: bool = False) -> None:
        """Offer the current weights to every replica. Collective."""
        started = time.monotonic()
        with self.card.taken():
            dtype = self.settings.publish_dtype
            weights = snapshot(self.policy, dtype=dtype, keeps=self.world.is_main)
            tokens = self._prober.take(self.policy)
        if not self.world.is_main:
            return
        copied_s = time.monotonic() - started
        write = partial(
            write_and_offer, self.policy, weights, tokens, settings=self.settings,
            client=self.client, step=self.step, copied_s=copied_s,
        )  # fmt: skip
        self.stats.publish_wait_s += self.publisher.wait()
        self.publisher.start(write)
        if not in_background:
            self.stats.publish_wait_s += self.publisher.wait()
