"""Whether a grpo stage shares prefixes: what `share_prefixes = "auto"` comes to, and why.

Asked by the plan, which says it, and again by whoever starts the trainer, when the model is at hand
(a hub's may not be before). What a stage says itself is taken as it is; what cannot be then is
refused by `forge.train.refusals`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from forge.config.schema import GrpoStage
from forge.process.devices import Vendor
from forge.runner.plan.model_shape import config_dir, model_shape, read_shape
from forge.train.refusals import has_windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forge.config.schema import Experiment, ModelTable
    from forge.process.devices import Gpu

TRIED = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""model_type of config.json: their gradients are compared in `tests/train/test_prefixes.py`."""
MAX_HEAD_DIM = 192
"""Wider heads have no backward in the flash kernel on some cards; all are multiples of 8."""
MIN_CAPABILITY = (8, 0)
MIN_TORCH = (2, 10)
"""With a varlen kernel of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What became of `share_prefixes`."""

    is_on: bool
    why: str


def share_prefixes(
    stage: GrpoStage, model: ModelTable, *, gpus: Sequence[Gpu], model_dir: Path | None = None
) -> Sharing:
    """As the stage says; for "auto", wherever it is known to work.

    Args:
        gpus: of the trainer; none of them: it is on the CPU.
        model_dir: what will be trained, once it is here.

    """
    if stage.share_prefixes != "auto":
        return Sharing(is_on=stage.share_prefixes, why="as the stage says")
    why_not = _cards(gpus) or _model(model, model_dir)
    return Sharing(is_on=not why_not, why=why_not or "what samples repeat is computed once")


def settled(experiment: Experiment, *, gpus: Sequence[Gpu]) -> Experiment:
    """With what "auto" comes to in its place."""
    stages = [
        stage.model_copy(
            update={"share_prefixes": share_prefixes(stage, experiment.model, gpus=gpus).is_on}
        )
        if isinstance(stage, GrpoStage)
        else stage
        for stage in experiment.stage
    ]
    return experiment.model_copy(update={"stage": stages})


def reasons(experiment: Experiment, *, gpus: Sequence[Gpu]) -> Iterator[str]:
    """A line for each stage that leaves it open."""
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, GrpoStage) and stage.share_prefixes == "auto":
            found = share_prefixes(stage, experiment.model, gpus=gpus)
            value = "true" if found.is_on else "false"
            yield f"stage.{index}.share_prefixes = auto: {value} ({found.why})"


def _cards(gpus: Sequence[Gpu]) -> str:
    """What speaks against it there; empty for nothing."""
    if not gpus:
        return "the trainer is on the CPU, which has no kernel for it"
    if any(gpu.vendor is not Vendor.NVIDIA for gpu in gpus):
        return "not tried on AMD"
    if any(gpu.capability is not None and gpu.capability < MIN_CAPABILITY for gpu in gpus):
        return "its kernel wants Ampere or later"
    found = re.match(r"(\d+)\.(\d+)", version("torch"))
    if found and tuple(map(int, found.groups())) < MIN_TORCH:
        return f"its kernel wants torch {'.'.join(map(str, MIN_TORCH))}"
    return ""


def _model(model: ModelTable, model_dir: Path | None) -> str:
    """What speaks against it there; empty for nothing."""
    if model.quantize is not None:
        return "not tried with 4-bit weights"
    folder = model_dir or config_dir(model)
    shape = read_shape(model_dir / "config.json") if model_dir else model_shape(model)
    if shape is None:
        return "the model is not known"
    if shape.is_mixture:
        return "the loss of a mixture's router counts tokens as often as they are forwarded"
    if shape.model_type not in TRIED:
        return f"not tried with {shape.model_type}"
    if folder and has_windows(folder):
        return "its layers see windows of the context"
    if shape.head_dim > MAX_HEAD_DIM or shape.head_dim % 8:
        return f"its kernel takes no heads of {shape.head_dim}"
    return ""
