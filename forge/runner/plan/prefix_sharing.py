"""Resolves `share_prefixes = "auto"` of a grpo stage, with the reason.

Called by the plan, which shows it, and again when the trainer starts, since a model of the hub may
be on the machine only then. An explicit true or false is kept; `forge.train.refusals` refuses what
cannot work.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from forge.config.schema import GrpoStage
from forge.process.devices import Vendor
from forge.runner.plan.model_shape import config_dir, model_shape
from forge.train.refusals import SHARING, has_windows, is_mixture, text_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forge.config.schema import Experiment, ModelTable
    from forge.process.devices import Gpu

MAX_HEAD_DIM = 192
"""On some cards the flash kernel has no backward pass for wider heads; all are multiples of 8."""
MIN_CAPABILITY = (8, 0)
MIN_TORCH = (2, 10)
"""First version with a varlen kernel."""


class Sharing(NamedTuple):
    """Resolved `share_prefixes`."""

    is_on: bool
    why: str


def share_prefixes(
    stage: GrpoStage, model: ModelTable, *, gpus: Sequence[Gpu], model_dir: Path | None = None
) -> Sharing:
    """Resolves the key of one stage: "auto" is true wherever sharing is known to work.

    Args:
        gpus: cards of the trainer; empty for the CPU.
        model_dir: the model to train, once it is on this machine.
    """
    if stage.share_prefixes != "auto":
        return Sharing(stage.share_prefixes, "set by the stage")
    if stage.attention != "auto":
        return Sharing(False, f'attention = "{stage.attention}" is set, and it has its own')
    why_not = _cards(gpus) or _model(model, model_dir)
    return Sharing(not why_not, why_not or "a prefix that samples share is computed once")


def settled(experiment: Experiment, *, gpus: Sequence[Gpu]) -> Experiment:
    """The experiment with "auto" resolved."""
    stages = list(experiment.stage)
    for index, stage in enumerate(stages):
        if isinstance(stage, GrpoStage):
            is_on = share_prefixes(stage, experiment.model, gpus=gpus).is_on
            stages[index] = stage.model_copy(update={"share_prefixes": is_on})
    return experiment.model_copy(update={"stage": stages})


def reasons(experiment: Experiment, *, gpus: Sequence[Gpu]) -> Iterator[str]:
    """A message for each stage with "auto"."""
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, GrpoStage) and stage.share_prefixes == "auto":
            is_on, why = share_prefixes(stage, experiment.model, gpus=gpus)
            yield f"stage.{index}.share_prefixes = auto: {str(is_on).lower()} ({why})"


def _cards(gpus: Sequence[Gpu]) -> str:
    """Why these cards cannot share prefixes; empty if they can."""
    if not gpus:
        return "the trainer is on the CPU, which has no kernel for it"
    if any(gpu.vendor is not Vendor.NVIDIA for gpu in gpus):
        return "not tested on AMD"
    if any(gpu.capability is not None and gpu.capability < MIN_CAPABILITY for gpu in gpus):
        return "its kernel needs Ampere or later"
    found = re.match(r"(\d+)\.(\d+)", version("torch"))
    if found and tuple(map(int, found.groups())) < MIN_TORCH:
        return f"its kernel needs torch {'.'.join(map(str, MIN_TORCH))}"
    return ""


def _model(model: ModelTable, model_dir: Path | None) -> str:
    """Why this model cannot share prefixes; empty if it can."""
    if model.quantize is not None:
        return "not tested with 4-bit weights"
    folder = model_dir or config_dir(model)
    if folder:  # without `model_shape`, which may ask transformers and block a run's loop
        config = text_config(folder)
        kind, is_sparse = str(config.get("model_type")), is_mixture(folder)
        heads = config.get("num_attention_heads") or 1
        width = config.get("head_dim") or (config.get("hidden_size") or 0) // heads
    elif shape := model_shape(model):
        kind, is_sparse, width = shape.model_type, shape.is_mixture, shape.head_dim
    else:
        kind, is_sparse, width = "", False, 0
    if not (kind and width):
        return "the shape of the model is unknown"
    if is_sparse:
        return "the router loss of a mixture counts a token each time it is forwarded"
    if kind not in SHARING:
        return f"not tested with {kind}"
    if folder and has_windows(folder):
        return "its layers use sliding windows"
    if width > MAX_HEAD_DIM or width % 8:
        return f"its kernel does not support a head width of {width}"
    return ""
