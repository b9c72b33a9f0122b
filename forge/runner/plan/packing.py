"""Resolves `packing = "auto"` of a training stage, with the reason.

Called by the plan, which shows it, and again when the trainer starts, since a model of the hub may
be on the machine only then. An explicit true or false is kept; `forge.train.refusals` refuses what
cannot work.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from forge.config.schema import EvalStage
from forge.process.devices import Vendor
from forge.runner.plan.shape import config_dir, model_shape
from forge.train.refusals import PACKED, text_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forge.config.schema import Experiment, GrpoStage, ModelTable, SftStage
    from forge.process.devices import Gpu

MAX_HEAD_DIM = 192
"""On some cards the flash kernel has no backward pass for wider heads; all are multiples of 8."""
MIN_CAPABILITY = (8, 0)
MIN_TORCH = (2, 10)
"""First version with a varlen kernel."""


class Packing(NamedTuple):
    """Resolved `packing`."""

    is_on: bool
    why: str


def resolve_packing(
    stage: SftStage | GrpoStage,
    model: ModelTable,
    *,
    gpus: Sequence[Gpu],
    model_dir: Path | None = None,
) -> Packing:
    """Resolves the key of one stage: "auto" is true wherever packing is known to work.

    Args:
        gpus: cards of the trainer; empty for the CPU.
        model_dir: the model to train, once it is on this machine.
    """
    if stage.packing != "auto":
        return Packing(stage.packing, "set by the stage")
    why_not = _cards(gpus) or _model(model, model_dir, is_on_gpu=bool(gpus))
    return Packing(not why_not, why_not or "no padding is computed, and a shared prefix once")


def settled(experiment: Experiment, *, gpus: Sequence[Gpu]) -> Experiment:
    """The experiment with "auto" resolved."""
    stages = list(experiment.stage)
    for index, stage in enumerate(stages):
        if not isinstance(stage, EvalStage):
            is_on = resolve_packing(stage, experiment.model, gpus=gpus).is_on
            stages[index] = stage.model_copy(update={"packing": is_on})
    return experiment.model_copy(update={"stage": stages})


def reasons(experiment: Experiment, *, gpus: Sequence[Gpu]) -> Iterator[str]:
    """A message for each stage in which "auto" turns packing off."""
    for index, stage in enumerate(experiment.stage):
        if not isinstance(stage, EvalStage) and stage.packing == "auto":
            is_on, why = resolve_packing(stage, experiment.model, gpus=gpus)
            if not is_on:
                yield f"stage.{index}.packing = auto: false ({why})"


def _cards(gpus: Sequence[Gpu]) -> str:
    """Why sequences cannot be packed on these cards; empty if they can."""
    if any(gpu.vendor is not Vendor.NVIDIA for gpu in gpus):
        return "not tested on AMD"
    if any(gpu.capability is not None and gpu.capability < MIN_CAPABILITY for gpu in gpus):
        return "its kernel needs Ampere or later"
    found = re.match(r"(\d+)\.(\d+)", version("torch"))
    if gpus and found and tuple(map(int, found.groups())) < MIN_TORCH:
        return f"its kernel needs torch {'.'.join(map(str, MIN_TORCH))}"
    return ""


def _model(model: ModelTable, model_dir: Path | None, *, is_on_gpu: bool) -> str:
    """Why this model's sequences cannot be packed; empty if they can."""
    if model.quantize is not None:
        return "not tested with 4-bit weights"
    folder = model_dir or config_dir(model)
    if folder:  # without `model_shape`, which may ask transformers and block a run's loop
        config = text_config(folder)
        kind = str(config.get("model_type"))
        heads = config.get("num_attention_heads") or 1
        width = config.get("head_dim") or (config.get("hidden_size") or 0) // heads
    elif shape := model_shape(model):
        kind, width = shape.model_type, shape.head_dim
    else:
        kind, width = "", 0
    if not (kind and width):
        return "the shape of the model is unknown"
    if kind not in PACKED:
        return f"not tested with {kind}"
    if is_on_gpu and (width > MAX_HEAD_DIM or width % 8):
        return f"its kernel does not support a head width of {width}"
    return ""
