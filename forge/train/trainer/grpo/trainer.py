"""GRPO with TRL's GRPOTrainer on samples that were played, judged and rewarded elsewhere.

    take ──▶ batch ──▶ micro-batches ──▶ TRL's loss ──▶ optimizer step(s) ──▶ trained, publish

TRL has the loss, the optimizer, PEFT, schedules and checkpoints. Its generation batch
(`rollout_func`, groups of fixed size, rewards, padding to the longest of all) is stepped over at
one seam: `get_batch_samples` hands the loop one batch an optimizer step, and `training_step` runs
its micro-batches. So a step may have any number of samples, and every `loss_type` averages over the
whole batch, however it is cut and over however many ranks: each reads the whole batch and trains
its share, rank 0 alone speaks to control.sock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import Trainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import use_adapter

from forge.train.batch import read_batch
from forge.train.trainer.child.card import SharedCard
from forge.train.trainer.child.checkpoint import WholeCheckpoints
from forge.train.trainer.child.memory import take_peak_bytes
from forge.train.trainer.child.parallel import LocalNumbers, World
from forge.train.trainer.grpo.microbatches import MicroBatch, cut_batch
from forge.train.trainer.grpo.stepstats import StepStats
from forge.train.trainer.publish.background import Publisher, write_and_offer
from forge.train.trainer.publish.probes import Prober
from forge.train.trainer.publish.weights import snapshot

if TYPE_CHECKING:
    from forge.train.trainer.child.control import StepOrders, SupervisorClient, TakenBatch
    from forge.train.trainer.child.settings import TrainerSettings
    from forge.train.trainer.grpo.prefixes import PrefixRow

logger = logging.getLogger(__name__)


class TurnTrainer(WholeCheckpoints, GRPOTrainer):
    """GRPOTrainer on batches taken from control.sock."""

    def __init__(
        self, *, settings: TrainerSettings, control: SupervisorClient, **kwargs: Any
    ) -> None:
        self.world = World()
        super().__init__(**kwargs)
        self.settings = settings
        self.server = control
        self.publisher = Publisher()
        self.card = SharedCard(settings.shared_card)
        self.stats = StepStats(clip_low=self.epsilon_low, clip_high=self.epsilon_high)
        self.taken: TakenBatch | None = None
        self._prober = Prober(settings.work_dir / "probe.json")
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
        micro_batches = inputs["micro_batches"]
        for micro_batch in micro_batches:
            self._current = micro_batch
            # FSDP2 sums its shards each time: to wait would take memory for all gradients whole.
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
        """To the device, past TRL's generation; with the reference's scores where it has one."""
        inputs = Trainer._prepare_inputs(self, inputs)
        self.stats.reference_BC = self._reference_logps(inputs) if self.beta else None
        if self.beta:
            inputs["ref_per_token_logps"] = self.stats.reference_BC
        return inputs

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's mean over a micro-batch's rows or tokens, weighted by its share of the batch.

        dapo needs no weight: it divides by `num_items_in_batch`, the tokens of the whole batch.
        Gradients are averaged over the ranks, so each rank's loss counts as often as there are any.
        """
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
        trained_BC = self._current.inputs["tool_mask"].to(input_ids.device) == 1
        if self._current.row is not None:
            return self._scores_of_row(model, self._current.row, trained_BC)
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
        aux_loss = self._weighed(outputs.aux_loss)
        logps_BC = outputs.log_probs[:, -logits_to_keep:]
        if not torch.is_grad_enabled():  # the reference: its head computes no entropies
            return logps_BC, None, aux_loss
        entropies_BC = outputs.entropy[:, -logits_to_keep:]
        self.stats.add(self._current, logps_BC.detach(), entropies_BC.detach())
        return logps_BC, entropies_BC, aux_loss

    def _scores_of_row(
        self, model: Any, row: PrefixRow, trained_BC: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """The same, from a forward in which samples share their prefixes. [B, C]"""
        assert self._current is not None
        is_reference = not torch.is_grad_enabled()  # its head computes no entropies
        device = trained_BC.device
        inputs = {name: tensor.to(device) for name, tensor in row.inputs.items()}
        wants_router = self.aux_loss_enabled and not is_reference
        router = {"output_router_logits": True} if wants_router else {}
        with self.accelerator.autocast():
            outputs = model(**inputs, **row.longest, fused_lm_head=True, **router)
        index = row.token_index.to(device)
        empty_BC = torch.zeros(trained_BC.shape, device=device)

        def placed(scores_1N: torch.Tensor) -> torch.Tensor:
            return empty_BC.masked_scatter(trained_BC, scores_1N[0, index].to(empty_BC.dtype))

        logps_BC = placed(outputs.log_probs)
        if is_reference:
            return logps_BC, None, None
        entropies_BC = placed(outputs.entropy)
        self.stats.add(self._current, logps_BC.detach(), entropies_BC.detach())
        return logps_BC, entropies_BC, self._weighed(outputs.aux_loss)

    def _weighed(self, aux_loss: torch.Tensor | None) -> torch.Tensor | None:
        """A mixture's loss for its router, at this micro-batch's weight where the rest of its loss
        has its own already."""
        assert self._current is not None
        if aux_loss is None or self.loss_type != "dapo":
            return aux_loss
        return aux_loss * (self._current.token_share * self.world.size)

    def _take(self) -> bool:
        """Wait for a batch. False when there is none to come, or SIGTERM asked us to stop."""
        batch, version = self.world.from_main(self._ask)
        if batch is None:
            return False
        samples = read_batch(batch.samples_path)
        if not samples:
            raise ValueError(f"{batch.samples_path}: a batch without samples")
        self.taken = batch
        if not self._prober.is_ready:
            with self.card.taken():
                self._prober.choose(samples, self.policy, keeps=self.world.is_main)
        self._cut = cut_batch(
            samples,
            max_tokens=self.settings.micro_batch_tokens,
            rank=self.world.rank,
            num_ranks=self.world.size,
            shares_prefixes=self.settings.shares_prefixes,
        )
        self._passes_left = self.updates_per_step
        newest = max(s.policy_version for s in samples)
        self.stats.start(batch, version=newest if version is None else version)
        return True

    def _ask(self) -> tuple[TakenBatch | None, int | None]:
        """On rank 0: the next batch, and the version of the weights that it is trained from."""
        return self.server.take(step=self.step), self.publisher.weights_version

    def finish_step(self) -> StepOrders:
        """Acknowledge the batch, and publish what it made of the weights. Collective."""
        assert self.taken is not None
        (peak,) = self.world.max([float(take_peak_bytes())])
        metrics = self.stats.metrics(self.world)
        if peak:
            metrics["train/peak_bytes/max"] = peak
        if peak and self.settings.shared_card is not None:
            torch.cuda.empty_cache()  # who shares the card may take what only this step needed
        report = partial(self.server.trained, step=self.taken.step, metrics=metrics)
        wishes = self.world.from_main(report)
        if wishes.evaluate or self.settings.is_published(self.step):
            is_free = self.settings.is_published_in_background(self.step)
            self.publish(in_background=is_free and not wishes.evaluate)
        return wishes

    def publish(self, *, in_background: bool = False) -> None:
        """Offer the weights as they are to every replica. Collective."""
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
            server=self.server, step=self.step, copied_s=copied_s,
        )  # fmt: skip
        self.stats.publish_wait_s += self.publisher.wait()
        self.publisher.start(write)
        if not in_background:
            self.stats.publish_wait_s += self.publisher.wait()

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
        self.stats.grad_norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        self.stats.learning_rate = self._get_learning_rate()  # the scheduler has not stepped yet
        if not self.stats.check_update():
            logger.error("update left out: gradient norm %s, loss %s", norm, self.stats.loss)
            model.zero_grad(set_to_none=True)
        return norm

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Nobody reads it, and it wants TRL's inputs."""
        return 0
