"""Numbers of one GRPO step, summed over its tokens while the micro-batches run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from forge.train.trainer.control import Batch
    from forge.train.trainer.microbatches import MicroBatch


@dataclass(slots=True, kw_only=True)
class StepStats:
    """Sums of a step; `metrics` makes means of them."""

    clip_low: float
    clip_high: float
    loss: float = 0.0
    """Of the last update's whole batch."""
    grad_norm: float = 0.0
    """Before clipping, of the last update."""
    learning_rate: float = 0.0
    """Of the last update."""
    version: int = -1
    """Policy version of the weights before the step."""
    wait_s: float = 0.0
    _started_at: float = 0.0
    _num_passes: int = 0
    _num_samples: int = 0
    _num_skipped: int = 0
    _ratio_max: float = 0.0
    _sums: dict[str, float] = field(default_factory=dict)

    def check_update(self) -> bool:
        """Whether the last update may be applied; counts it where not."""
        ok = math.isfinite(self.grad_norm) and math.isfinite(self.loss)
        self._num_skipped += not ok
        return ok

    def start(self, batch: Batch, *, version: int) -> None:
        """A batch was taken, to be trained from weights of this version."""
        self.version, self.wait_s = version, batch.wait_s
        self._started_at = time.monotonic()
        self._num_samples = self._num_skipped = self._num_passes = 0
        self._ratio_max = 0.0
        self._sums = {}

    def begin_pass(self) -> None:
        """Every sample of the batch is about to be seen, once more."""
        self._num_passes += 1

    def add(
        self, micro_batch: MicroBatch, logps_BC: torch.Tensor, entropies_BC: torch.Tensor
    ) -> None:
        """Tokens of one forward. The gap to the engine counts tokens of current samples, seen
        before any update."""
        inputs = micro_batch.inputs
        mask_BC = inputs["tool_mask"].to(logps_BC.device) == 1
        old_BC = inputs["old_per_token_logps"].to(logps_BC.device)
        rows_BC = torch.arange(len(mask_BC), device=mask_BC.device)[:, None].expand_as(mask_BC)
        log_ratio, row = (logps_BC - old_BC)[mask_BC], rows_BC[mask_BC]
        ratio = log_ratio.exp()
        advantage = inputs["advantages"].to(ratio.device)[row]
        is_clipped = ((ratio < 1 - self.clip_low) & (advantage < 0)) | (
            (ratio > 1 + self.clip_high) & (advantage > 0)
        )
        self._add("tokens", ratio.numel())
        self._add("ratio", ratio.sum())
        self._add("clipped", is_clipped.sum())
        # Schulman's k3 estimator of KL(behaviour || policy): no sample of it is negative.
        self._add("kl", (ratio - 1 - log_ratio).sum())
        self._add("entropy", entropies_BC[mask_BC].sum())
        self._ratio_max = max(self._ratio_max, ratio.max().item())
        if self._num_passes == 1:
            self._num_samples += len(micro_batch.samples)
        is_current = torch.tensor(
            [s.policy_version >= self.version for s in micro_batch.samples], device=row.device
        )[row]
        if self._num_passes == 1 and is_current.any():
            self._add("gap", log_ratio[is_current].abs().sum())
            self._add("gap_tokens", is_current.sum())

    def metrics(self) -> dict[str, float]:
        """Means over the step's tokens, all passes together; `gap` over the first."""
        tokens = max(self._sums.get("tokens", 0.0), 1.0)
        found = {
            "train/loss/mean": self.loss,
            "train/grad_norm/value": self.grad_norm,
            "train/learning_rate/value": self.learning_rate,
            "train/ratio/mean": self._sums["ratio"] / tokens,
            "train/ratio/max": self._ratio_max,
            "train/clipped/share": self._sums["clipped"] / tokens,
            "train/kl_behaviour/mean": self._sums["kl"] / tokens,
            "train/entropy/mean": self._sums["entropy"] / tokens,
            "train/tokens/sum": tokens,
            "train/samples/count": float(self._num_samples),
            "train/skipped_updates/count": float(self._num_skipped),
            "train/step/seconds": time.monotonic() - self._started_at,
            "train/wait/seconds": self.wait_s,
        }
        if "gap_tokens" in self._sums:
            found["train/logprob_gap/mean"] = self._sums["gap"] / self._sums["gap_tokens"]
        return found

    def _add(self, name: str, value: torch.Tensor | float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(value)
