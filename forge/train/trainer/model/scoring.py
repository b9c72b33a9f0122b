"""One repair of TRL 1.16 for CPU, applied before a trainer is made.

TRL's fused language-model head scores every position where there is no Triton device, prompts and
padding included, and throws most of it away; on a GPU it picks the labelled positions first. The
reason given is recompilation on other accelerators, which a CPU does not have. Measured, 1M
parameters, 16 × 350 tokens, 60 % labelled: a quarter of the step went into the head, now a tenth.
Values are the same, only fewer of them are computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trl.trainer.utils

if TYPE_CHECKING:
    import torch


def score_labelled_positions_only() -> None:
    """Make TRL's head pick the labelled positions on CPU too."""
    trl.trainer.utils._use_triton = _picks_labelled  # pyright: ignore[reportPrivateImportUsage]


def _picks_labelled(device: torch.device) -> bool:
    return device.type in ("cpu", "cuda")
