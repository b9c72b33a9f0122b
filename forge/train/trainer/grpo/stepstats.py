"""Metrics of one GRPO step, summed over its tokens while the micro-batches run.

Sums stay on the device until the step ends: reading one would make the CPU wait for the GPU before
it can queue the next micro-batch. `metrics` is a collective and covers all ranks.

Shapes: M trained tokens of a micro-batch.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from forge.train.trainer.child.control import TakenBatch
    from forge.train.trainer.child.parallel import World
    from forge.train.trainer.packed.head import Scores
    from forge.train.trainer.packed.sequences import MicroBatch

_SUMS = (
    "tokens", "ratio", "clipped", "left_out", "kl", "kl_reference", "entropy", "gap", "gap_tokens",
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class StepStats:
    """Sums of a step; `metrics` turns them into means."""

    loss: float = 0.0
    """Loss of the last update's whole batch, over all ranks."""
    grad_norm: float = 0.0
    """Gradient norm of the last update, before clipping."""
    learning_rate: float = 0.0
    """Learning rate of the last update."""
    version: int = -1
    """Policy version of the weights before the step."""
    wait_s: float = 0.0
    """Time spent waiting for the batch."""
    publish_wait_s: float = 0.0
    """Time spent waiting for publishes since the last step began."""
    num_passes: int = 0
    """Passes over the batch that have begun."""
    _started_at: float = 0.0
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

    def start(self, batch: TakenBatch, *, version: int) -> None:
        """Start a step on the batch, from weights of this version."""
        self.version, self.wait_s = version, batch.wait_s
        self._started_at = time.monotonic()
        self._num_samples = self._num_skipped = self.num_passes = 0
        self._num_micro_batches = self._num_forwarded = self._num_real = 0
        self._ratio_max = None
        self._sums = {}

    def add(
        self,
        micro_batch: MicroBatch,
        scores: Scores,
        *,
        ratio: torch.Tensor,
        is_clipped: torch.Tensor,
        is_left_out: torch.Tensor,
    ) -> None:
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
        self._add("tokens", torch.ones_like(ratio).sum())
        self._add("ratio", ratio.sum())
        self._add("clipped", is_clipped.sum())
        self._add("left_out", is_left_out.sum())
        # Schulman's k3 estimator of KL(behaviour || policy): no sample of it is negative.
        self._add("kl", (log_ratio.exp() - 1 - log_ratio).sum())
        if "reference" in values:
            gap = values["reference"] - logps
            self._add("kl_reference", (gap.exp() - 1 - gap).sum())
        self._add("entropy", entropy.detach().sum())
        highest = ratio.max().double()
        self._ratio_max = (
            highest if self._ratio_max is None else torch.maximum(self._ratio_max, highest)
        )
        if self.num_passes != 1:
            return
        self._num_samples += len(micro_batch.sequences)
        self._num_real += micro_batch.num_tokens
        self._add("gap", (log_ratio.abs() * values["current"]).sum())
        self._add("gap_tokens", values["current"].sum())

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

    def _add(self, name: str, value: torch.Tensor) -> None:
        now = self._sums.get(name)
        self._sums[name] = value.double() if now is None else now + value
