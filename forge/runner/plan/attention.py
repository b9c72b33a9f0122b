"""Resolves `attention` of a training stage: flash where packed rows gain from it, with the reason.

Called by the plan, which shows it, and again when the trainer starts. A demand for flash that these
cards cannot meet is refused by the plan.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from forge.config.schema import EvalStage, SftStage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forge.config.schema import Experiment, GrpoStage
    from forge.process.devices import Gpu

PACKAGE = "flash_attn"
MIN_CAPABILITY = (8, 0)
"""FlashAttention 2 needs Ampere or later."""


def resolve_attention(
    stage: SftStage | GrpoStage, *, gpus: Sequence[Gpu], is_installed: bool | None = None
) -> str:
    """ "auto" as "flash" if the rows are packed and it can be used, else the key's own value.

    Args:
        gpus: cards of the trainer; empty for the CPU.
        is_installed: True if the trainer has the package; None looks for it here.
    """
    if stage.attention != "auto" or not _packs(stage) or flash_refusal(gpus):
        return stage.attention
    return "flash" if _has_package(is_installed) else "auto"


def flash_refusal(gpus: Sequence[Gpu]) -> str:
    """Why a stage cannot use flash on these cards, whatever is installed; empty if it can."""
    if not gpus:
        return "the trainer on the CPU"
    if any(gpu.capability is not None and gpu.capability < MIN_CAPABILITY for gpu in gpus):
        return "a GPU older than Ampere"
    return ""


def attention_reasons(
    experiment: Experiment, *, gpus: Sequence[Gpu], is_here: bool
) -> Iterator[str]:
    """A line for each stage with packed rows."""
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, EvalStage) or not _packs(stage):
            continue
        found = resolve_attention(stage, gpus=gpus, is_installed=None if is_here else True)
        if found != "flash":
            why_not = flash_refusal(gpus) or f"without {PACKAGE}"
            if stage.attention == "sdpa":
                why_not = "set by the stage"
            words = f"sdpa ({why_not}); it computes packed rows in full, which is slow"
        elif stage.attention == "auto":
            words = f"flash{'' if is_here else f', if {PACKAGE} is installed there'}"
        else:
            continue
        yield f"stage.{index}.attention = {stage.attention}: {words}"


def _packs(stage: SftStage | GrpoStage) -> bool:
    return isinstance(stage, SftStage) and stage.packing


def _has_package(is_installed: bool | None) -> bool:
    return importlib.util.find_spec(PACKAGE) is not None if is_installed is None else is_installed
