"""GRPO on samples that were played, judged and rewarded elsewhere.

    take ──▶ batch ──▶ micro-batches ──▶ clipped loss ──▶ optimizer step(s) ──▶ trained, publish

A step may have any number of samples: each token has its weight in the whole batch. Rank 0 alone
speaks to control.sock and reads the run's files.

Shapes: M trained tokens of a micro-batch.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from trl.models.utils import prepare_fsdp
from trl.trainer.utils import use_adapter

from forge.train.batch import read_batch
from forge.train.trainer.child.card import take_peak_bytes
from forge.train.trainer.child.trainer import StageTrainer
from forge.train.trainer.grpo.stepstats import StepStats
from forge.train.trainer.packed import sequences
from forge.train.trainer.packed.head import Scores, add_head, score
from forge.train.trainer.publish.probes import Prober, read_tokens
from forge.train.trainer.publish.weights import Publisher, snapshot, write_and_offer

if TYPE_CHECKING:
    from forge.records import Sample
    from forge.train.trainer.child.control import StepOrders, SupervisorClient, TakenBatch
    from forge.train.trainer.child.settings import TrainerSettings
    from forge.train.trainer.packed.sequences import MicroBatch

logger = logging.getLogger(__name__)


def token_weight(loss: str, sample: Sample, *, batch: Sequence[Sample], longest: int) -> float:
    """Weight of a sample's tokens in the loss of its batch. dapo (arXiv 2503.14476), bnpo and
    cispo: all tokens of the batch count the same. grpo (2402.03300): all samples. dr_grpo
    (2503.20783): all tokens, divided by `longest`, the tokens that a sample may have."""
    if loss == "grpo":
        return 1 / (len(batch) * max(len(sample.completion_ids), 1))
    if loss == "dr_grpo":
        return 1 / (len(batch) * longest)
    return 1 / max(sum(len(each.completion_ids) for each in batch), 1)


def sequences_of(
    batch: Sequence[Sample], *, loss: str, longest: int, version: int
) -> list[sequences.Sequence]:
    """The samples as sequences. `version` is that of the weights before the step: a sample is
    `current` if it was played with them."""
    return [
        sequences.Sequence(
            ids=np.array([*sample.prompt_ids, *sample.completion_ids]),
            trained=np.arange(len(sample.completion_ids)) + len(sample.prompt_ids),
            values={
                "weight": token_weight(loss, sample, batch=batch, longest=longest),
                "played": np.array(sample.logprobs, dtype=np.float32),
                "advantage": sample.advantage,
                "current": float(sample.policy_version >= version),
            },
        )
        for sample in batch
    ]


def mean_of_sequence(values: torch.Tensor, micro_batch: MicroBatch) -> torch.Tensor:
    """For each trained token the mean over those of its sequence. [M]"""
    sizes = torch.tensor(
        [len(each.trained) for each in micro_batch.sequences], device=values.device
    )
    of = torch.repeat_interleave(sizes, output_size=len(values))
    return (values.new_zeros(len(sizes)).index_add(0, of, values) / sizes.clamp(min=1))[of]


class TurnTrainer(StageTrainer):
    """Trains batches taken from control.sock."""

    def __init__(
        self, *, settings: TrainerSettings, client: SupervisorClient, reference: Any, **kwargs: Any
    ) -> None:
        """`reference` is a model of its own; None if there is no KL term, or if the reference is
        the model without its adapter."""
        super().__init__(settings=settings, **kwargs)
        stage = settings.stage
        self.client = client
        self.publisher = Publisher()
        self.loss_type: str = stage["loss"]
        self.beta: float = stage["beta"]
        self.clip: tuple[float, float] = 1 - stage["clip_low"], 1 + stage["clip_high"]
        self.reference = None if reference is None else frozen(reference, trainer=self)
        self.stats = StepStats()
        self.taken: TakenBatch | None = None
        probe_path = settings.work_dir / "probe.json"
        tokens = self.world.from_main(partial(read_tokens, probe_path))
        self._prober = Prober(probe_path, tokens)
        self._cut: list[MicroBatch] = []
        self._passes_left = 0

    @property
    def policy(self) -> Any:
        """The model. transformers' own attribute is typed as a union of too many classes."""
        return self.model

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates on each batch."""
        return self.settings.stage["updates_per_batch"]

    @property
    def step(self) -> int:
        """Batches trained. global_step counts optimizer updates."""
        return self.state.global_step // self.updates_per_step

    def next_batch(self) -> list[MicroBatch] | None:
        """The micro-batches of one update. None after the last batch."""
        if self._passes_left == 0 and not self._take():
            return None
        self._passes_left -= 1
        self.stats.num_passes += 1
        return self._cut

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
        newest = max(s.policy_version for s in samples)
        version = newest if version is None else version
        self._cut = self.cut(self.sequences_of(samples, version=version))
        self._passes_left = self.updates_per_step
        self.stats.start(batch, version=version)
        return True

    def sequences_of(self, samples: Sequence[Sample], *, version: int) -> list[sequences.Sequence]:
        """The samples of a batch as sequences, with their weights in this stage's loss."""
        longest = self.settings.rollout["max_completion_tokens"]
        return sequences_of(samples, loss=self.loss_type, longest=longest, version=version)

    def _ask(self) -> tuple[TakenBatch | None, Sequence[Sample], int | None]:
        """On rank 0, whose machine has the file: the next batch with its samples, and the version
        of the weights that it is trained from."""
        batch = self.client.take(step=self.step)
        samples = () if batch is None else read_batch(batch.samples_path)
        return batch, samples, self.publisher.weights_version

    def training_step(
        self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Also notes the loss of the whole batch, which waits for the GPU once an update."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        (total,) = self.world.sum([loss.item()])
        self.stats.loss = total / self.world.size  # each rank's is scaled for their mean
        return loss

    def prepared(self, micro_batch: MicroBatch) -> MicroBatch:
        """With the reference's log-probabilities, if there is a KL term."""
        if self.beta:
            micro_batch.values["reference"] = self._reference_logps(micro_batch)
        return micro_batch

    def loss_of(self, micro_batch: MicroBatch, scores: Scores) -> torch.Tensor:
        """The clipped loss (PPO, arXiv 1707.06347; over answers GSPO, 2507.18071), or CISPO's
        (2506.13585), without what the mask leaves out; and, with `beta`, the penalty of GRPO: the
        k3 estimator (Schulman) of KL(policy || reference)."""
        values, logps, stage = micro_batch.values, scores.logps, self.settings.stage
        advantage, log_ratio = values["advantage"], logps - values["played"]
        if stage["importance_sampling_level"] == "sequence":
            log_ratio = mean_of_sequence(log_ratio, micro_batch)
        ratio, (low, high) = log_ratio.exp(), self.clip
        if self.loss_type == "cispo":
            loss, is_clipped = -ratio.detach().clamp(max=high) * advantage * logps, ratio > high
        else:
            most = math.inf if stage["delta"] is None else stage["delta"]
            bounded = ratio.clamp(max=most)
            is_clipped = (ratio > high) & (advantage > 0)
            is_clipped |= ((ratio < low) | (ratio > most)) & (advantage < 0)
            loss = -torch.min(bounded * advantage, ratio.clamp(low, high) * advantage)
        is_left_out = torch.zeros_like(ratio, dtype=torch.bool)
        if (limit := stage["off_policy_mask_threshold"]) is not None:
            gap = mean_of_sequence(values["played"] - logps.detach(), micro_batch)
            is_left_out = (advantage < 0) & (gap > limit)
            loss = loss.masked_fill(is_left_out, 0.0)
        if self.beta:
            gap = values["reference"] - logps
            loss = loss + self.beta * (gap.exp() - 1 - gap)
        self.stats.add(
            micro_batch, scores,
            ratio=ratio.detach(), is_clipped=is_clipped, is_left_out=is_left_out,
        )  # fmt: skip
        return (loss * values["weight"]).sum()

    @torch.no_grad()
    def _reference_logps(self, micro_batch: MicroBatch) -> torch.Tensor:
        """Log-probabilities under the model that the stage began with. [M]"""
        if self.reference is not None:
            return score(self.reference, micro_batch).logps
        with use_adapter(self.policy, "ref" if "ref" in self.policy.peft_config else None):
            return score(self.policy, micro_batch).logps

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Note it for the metrics, which waits for the GPU. An update that is not finite would
        destroy the weights, so it is skipped."""
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
        metrics["train/checkpoint/seconds"] = self.take_checkpoint_s()
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


def frozen(reference: Any, *, trainer: StageTrainer) -> Any:
    """The reference model, scored as the policy is and placed on its GPUs."""
    add_head(reference, temperature=trainer.settings.temperature)
    reference.requires_grad_(False)
    if trainer.is_fsdp_enabled:
        return prepare_fsdp(reference, trainer.accelerator)
    return trainer.accelerator.prepare_model(reference, evaluation_mode=True)
