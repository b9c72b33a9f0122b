"""A GRPO stage, on samples that were played, judged and rewarded elsewhere.

    take ──▶ batch ──▶ micro-batches ──▶ clipped loss ──▶ optimizer step(s) ──▶ trained, publish

A step may have any number of samples: each token has its weight in the whole batch. Rank 0 alone
speaks to control.sock and reads the run's files. Sums of metrics stay on the device until the step
ends: reading one would make the CPU wait for the GPU before it can queue the next micro-batch.

Ends when the last step is trained, when the supervisor answers `take` with `done` or `stop`, or
after a SIGTERM; always with a checkpoint of the last step.

Shapes: M trained tokens of a micro-batch.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerControl, TrainerState, TrainingArguments
from trl.models.utils import prepare_fsdp
from trl.trainer.utils import use_adapter

from forge.records import Sample
from forge.train.batch import read_batch
from forge.train.trainer.child.control import StepOrders, SupervisorClient, TakenBatch, open_stage
from forge.train.trainer.child.parallel import World, take_peak_bytes
from forge.train.trainer.child.settings import TrainerSettings, trainer_arguments
from forge.train.trainer.child.trainer import Reporter, StageTrainer
from forge.train.trainer.model.load import load_base, load_model
from forge.train.trainer.packed import sequences
from forge.train.trainer.packed.head import Scores, add_head, score
from forge.train.trainer.packed.sequences import MicroBatch
from forge.train.trainer.publish.weights import (
    Prober,
    Publisher,
    read_tokens,
    snapshot,
    write_and_offer,
)

logger = logging.getLogger(__name__)


def train_turns(settings: TrainerSettings) -> None:
    last = settings.checkpoint
    with open_stage(settings) as (client, stop):
        trainer = make_trainer(settings, client=client)
        client.before_poll = trainer.publisher.check
        trainer.add_callback(GrpoReporter(trainer, client=client, stop=stop))
        logger.info("training from %s, layout: %s", last or settings.model_dir, settings.layout)
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        trainer.publisher.wait()
    logger.info("ended after step %d of %d", trainer.step, settings.stage["steps"])


def make_trainer(settings: TrainerSettings, *, client: SupervisorClient) -> TurnTrainer:
    model, reference = load_model(settings), None
    if settings.stage["beta"] and not hasattr(model, "peft_config"):
        reference = load_base(settings)
    elif settings.stage["beta"] and settings.adapter is not None:
        hold_reference(model)
    for module in model.modules():  # an adapter's: the engine that played the samples has none
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    updates = settings.stage["updates_per_batch"]
    return TurnTrainer(
        settings=settings, client=client, model=model, reference=reference,
        arguments=trainer_arguments(settings, updates_per_step=updates),
    )  # fmt: skip


def hold_reference(model: Any) -> None:
    """Keep a copy of the adapter that is trained further, as the adapter "ref"."""
    model.add_adapter("ref", model.peft_config["default"])
    for name, parameter in model.named_parameters():
        if ".default." in name:
            model.get_parameter(name.replace(".default.", ".ref.")).data.copy_(parameter.data)


class GrpoReporter(Reporter["TurnTrainer"]):
    """Also ends the trainer's steps, and the stage after SIGTERM."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Publish first after a resume: the replicas may serve weights of a step that is lost."""
        super().on_train_begin(args, state, control, **kwargs)
        if state.global_step > 0 and self._trainer.settings.publishes:
            self._trainer.publish()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After the last update of a batch: report it, save and stop if asked to."""
        if state.global_step % self._trainer.updates_per_step:
            return
        if self._trainer.finish_step().save:
            self.save(control)
        if self._trainer.world.from_main(lambda: self._stop.is_set):
            control.should_save = control.should_training_stop = True


def token_weight(loss: str, sample: Sample, *, batch: Sequence[Sample], longest: int) -> float:
    """Weight of a sample's tokens in the loss of its batch. dapo (arXiv 2503.14476), bnpo and
    cispo: all tokens of the batch count the same. grpo (2402.03300): all samples. dr_grpo
    (2503.20783): all tokens, divided by `longest`, the tokens that a sample may have."""
    if loss == "grpo":
        return 1 / (len(batch) * max(len(sampled(sample)), 1))
    if loss == "dr_grpo":
        return 1 / (len(batch) * longest)
    return 1 / max(sum(len(sampled(each)) for each in batch), 1)


def sampled(sample: Sample) -> np.ndarray:
    """Positions in the completion of the tokens that the model sampled: all but those of tools'
    replies."""
    return np.flatnonzero(~np.isnan(np.array(sample.logprobs, dtype=np.float32)))


def sequences_of(
    batch: Sequence[Sample], *, loss: str, longest: int, version: int
) -> list[sequences.Sequence]:
    """The samples as sequences. `version` is that of the weights before the step: a sample is
    `current` if it was played with them."""
    return [
        sequences.Sequence(
            ids=np.array([*sample.prompt_ids, *sample.completion_ids]),
            trained=sampled(sample) + len(sample.prompt_ids),
            values={
                "weight": token_weight(loss, sample, batch=batch, longest=longest),
                "played": np.array(sample.logprobs, dtype=np.float32)[sampled(sample)],
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
    def __init__(
        self, *, settings: TrainerSettings, client: SupervisorClient, reference: Any, **kwargs: Any
    ) -> None:
        """`reference` is a model of its own; None if there is no KL term, or if the reference is
        the model without its adapter."""
        super().__init__(settings=settings, **kwargs)
        stage = settings.stage
        self.client, self.publisher = client, Publisher()
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
        return self.settings.stage["updates_per_batch"]

    @property
    def step(self) -> int:
        return self.state.global_step // self.updates_per_step

    def next_batch(self) -> list[MicroBatch] | None:
        """The micro-batches of one update. None after the last batch."""
        if self._passes_left == 0 and not self._take():
            return None
        self._passes_left -= 1
        self.stats.num_passes += 1
        return self._cut

    def _take(self) -> bool:
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
        waited = self.stats.publish_wait_s
        self.stats = StepStats(version=version, wait_s=batch.wait_s, publish_wait_s=waited)
        return True

    def sequences_of(self, samples: Sequence[Sample], *, version: int) -> list[sequences.Sequence]:
        """The samples of a batch as sequences, with their weights in this stage's loss."""
        rollout = self.settings.rollout
        longest = rollout["max_completion_tokens"]
        longest *= 1 + (rollout["tool_calls"] if rollout["tools"] else 0)
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
        gap = values["played"] - logps.detach()
        if (limit := stage["off_policy_mask_threshold"]) is not None:
            is_left_out = (advantage < 0) & (mean_of_sequence(gap, micro_batch) > limit)
        if (limit := stage["logprob_gap_limit"]) is not None:
            is_left_out = is_left_out | (mean_of_sequence(gap.abs(), micro_batch) > limit)
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
        is_shared = self.settings.shares_weights and not self.settings.is_kept(self.step)
        if is_shared:  # the GPU has room for one copy
            self.stats.publish_wait_s += self.publisher.wait()
            self.world.wait()
        started = time.monotonic()
        with self.card.taken():
            weights = snapshot(
                self.policy, dtype=self.settings.publish_dtype, keeps=self.world.is_main,
                on_device=is_shared,
            )  # fmt: skip
            tokens = self._prober.take(self.policy)
        if not self.world.is_main:
            return
        copied_s = time.monotonic() - started
        write = partial(
            write_and_offer, self.policy, weights, tokens, settings=self.settings,
            client=self.client, step=self.step, copied_s=copied_s, is_shared=is_shared,
        )  # fmt: skip
        self.stats.publish_wait_s += self.publisher.wait()
        self.publisher.publish(write)
        if not in_background:
            self.stats.publish_wait_s += self.publisher.wait()


def frozen(reference: Any, *, trainer: StageTrainer) -> Any:
    add_head(reference, temperature=trainer.settings.temperature)
    reference.requires_grad_(False)
    if trainer.is_fsdp_enabled:
        return prepare_fsdp(reference, trainer.accelerator)
    return trainer.accelerator.prepare_model(reference, evaluation_mode=True)


_SUMS = (
    "tokens", "ratio", "clipped", "left_out", "kl", "kl_reference", "entropy", "gap", "gap_tokens",
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class StepStats:
    """Sums of a step; `metrics` turns them into means."""

    loss: float = 0.0
    """Loss of the last update's whole batch, over all ranks."""
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    version: int = -1
    """Policy version of the weights before the step."""
    wait_s: float = 0.0
    publish_wait_s: float = 0.0
    """Time spent waiting for publishes since the last step began."""
    num_passes: int = 0
    """Passes over the batch that have begun."""
    _started_at: float = field(default_factory=time.monotonic)
    _num_samples: int = 0
    _num_skipped: int = 0
    _num_micro_batches: int = 0
    _num_forwarded: int = 0
    _num_real: int = 0
    _ratio_max: torch.Tensor | None = None
    _sums: dict[str, torch.Tensor] = field(default_factory=dict)

    def check_update(self) -> bool:
        """True if the last update is finite; counts it as skipped if not."""
        ok = math.isfinite(self.grad_norm) and math.isfinite(self.loss)
        self._num_skipped += not ok
        return ok

    def add(
        self, micro_batch: MicroBatch, scores: Scores, *, ratio: torch.Tensor,
        is_clipped: torch.Tensor, is_left_out: torch.Tensor,
    ) -> None:  # fmt: skip
        """Add the tokens of one forward. The gap to the engine counts tokens of the current
        version's samples in the first pass, before any update.

        Args:
            ratio: of the loss, over a token or its answer. [M]
            is_clipped: True for tokens whose ratio the loss bounds. [M]
            is_left_out: True for tokens without a loss. [M]
        """
        self._num_forwarded += micro_batch.num_forwarded
        self._num_micro_batches += 1
        if micro_batch.is_filler or not micro_batch.num_trained:
            return
        values, logps, entropy = micro_batch.values, scores.logps.detach(), scores.entropy
        assert entropy is not None
        log_ratio = logps - values["played"]
        # Schulman's k3 estimator of KL(behaviour || policy): no sample of it is negative.
        self._add(
            tokens=torch.ones_like(ratio), ratio=ratio, clipped=is_clipped, left_out=is_left_out,
            kl=log_ratio.exp() - 1 - log_ratio, entropy=entropy.detach(),
        )  # fmt: skip
        if "reference" in values:
            gap = values["reference"] - logps
            self._add(kl_reference=gap.exp() - 1 - gap)
        highest = ratio.max().double()
        self._ratio_max = (
            highest if self._ratio_max is None else torch.maximum(self._ratio_max, highest)
        )
        if self.num_passes == 1:
            self._num_samples += len(micro_batch.sequences)
            self._num_real += micro_batch.num_tokens
            current = values["current"]
            self._add(gap=log_ratio.abs() * current, gap_tokens=current)

    def metrics(self, world: World) -> dict[str, float]:
        """Means over the step's tokens in all passes and ranks; the gap over the first pass.

        `train/tokens/per_s` counts prompt and completion tokens without padding."""
        sums = dict(zip(_SUMS, world.sum(self._on_host()), strict=True))
        counts = world.sum(
            [self._num_samples, self._num_micro_batches, self._num_forwarded, self._num_real]
        )
        (ratio_max,) = world.max([0.0 if self._ratio_max is None else self._ratio_max.item()])
        tokens = max(sums["tokens"], 1.0)
        seconds = time.monotonic() - self._started_at
        found = {
            "train/loss/mean": self.loss,
            "train/grad_norm/value": self.grad_norm,
            "train/learning_rate/value": self.learning_rate,
            "train/ratio/mean": sums["ratio"] / tokens,
            "train/ratio/max": ratio_max,
            "train/clipped/share": sums["clipped"] / tokens,
            "train/left_out/share": sums["left_out"] / tokens,
            "train/kl_behaviour/mean": sums["kl"] / tokens,
            "train/entropy/mean": sums["entropy"] / tokens,
            "train/tokens/sum": tokens,
            "train/samples/count": counts[0],
            "train/micro_batches/count": counts[1],
            "train/forward_tokens/sum": counts[2],
            "train/tokens/per_s": counts[3] * self.num_passes / max(seconds, 1e-9),
            "train/skipped_updates/count": float(self._num_skipped),
            "train/step/seconds": seconds,
            "train/wait/seconds": self.wait_s,
            "train/publish_wait/seconds": self.publish_wait_s,
        }
        self.publish_wait_s = 0.0
        if "kl_reference" in self._sums:
            found["train/kl_reference/mean"] = sums["kl_reference"] / tokens
        if sums["gap_tokens"]:
            found["train/logprob_gap/mean"] = sums["gap"] / sums["gap_tokens"]
        return found

    def _on_host(self) -> list[float]:
        """The sums in the order of `_SUMS`, in one copy from the device."""
        if not self._sums:
            return [0.0] * len(_SUMS)
        zero = torch.zeros((), dtype=torch.float64, device=self._sums["tokens"].device)
        return torch.stack([self._sums.get(name, zero) for name in _SUMS]).tolist()

    def _add(self, **values: torch.Tensor) -> None:
        for name, value in values.items():
            now, new = self._sums.get(name), value.sum()
            self._sums[name] = new.double() if now is None else now + new
