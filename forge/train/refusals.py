"""Combinations of stage and model that a trainer cannot train, found before it starts. No torch.

Called by `handle.py`, and by `forge plan` once the model's directory is known.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forge.config.schema import GrpoStage, LoraTable, ModelTable, SftStage

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Config keys with the number of experts of a mixture."""
EXPERT_MODULES = frozenset({"gate", "router", "gate_proj", "up_proj", "down_proj"})
"""Module names that mean something else on a mixture than on a dense model: PEFT maps them to the
fused experts (gate_proj and up_proj with twice the rank), or they are the router."""


def refusals(
    stage: SftStage | GrpoStage,
    *,
    model: ModelTable,
    model_dir: Path,
    num_gpus: int,
    has_experts: bool | None = None,
) -> list[str]:
    """One line per mistake: where, what was found, what is allowed. `has_experts` describes a model
    that is not on this machine; None reads config.json."""
    if has_experts is None:
        has_experts = is_mixture(model_dir)
    found: list[str] = []
    if isinstance(stage, SftStage) and stage.batch_size % num_gpus:
        found.append(
            f"batch_size: found {stage.batch_size}, which {num_gpus} trainer GPUs cannot share; "
            f"a multiple of {num_gpus}"
        )
    if model.lora is not None and has_experts:
        found += _of_experts(model.lora)
    if isinstance(stage, GrpoStage) and stage.share_prefixes is True and has_windows(model_dir):
        found.append(
            "share_prefixes: found true for a model whose layers see windows of the context; false"
        )
    if model.quantize is not None and stage.parallel == "fsdp2":
        found.append('parallel: found "fsdp2" with model.quantize; "ddp" or "auto"')
    return found


def missing_package(stage: SftStage | GrpoStage, *, model: ModelTable) -> str | None:
    """Message about a required package that is not installed; None if nothing is missing."""
    if find_spec("bitsandbytes") is not None:
        return None
    key = 'optimizer = "adamw_8bit"' if stage.optimizer == "adamw_8bit" else None
    if model.quantize is not None:
        key = "model.quantize"
    return key and f"{key} needs bitsandbytes, which is not installed: pip install bitsandbytes"


def is_mixture(model_dir: Path) -> bool:
    """True if config.json names experts."""
    config = _config(model_dir)
    return any(config.get(key) for key in EXPERT_KEYS)


def has_windows(model_dir: Path) -> bool:
    """True if config.json names layers without full attention, or a window for all layers or for
    those that the model's class selects."""
    config = _config(model_dir)
    config |= config.get("text_config") or {}
    if kinds := config.get("layer_types"):
        return any(kind != "full_attention" for kind in kinds)
    if config.get("attention_chunk_size") or config.get("sliding_window_pattern"):
        return True
    return bool(config.get("sliding_window")) and config.get("use_sliding_window", True)


def _config(model_dir: Path) -> dict[str, Any]:
    path = model_dir / "config.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def _of_experts(lora: LoraTable) -> list[str]:
    found: list[str] = []
    if lora.target_modules == "all-linear":
        found.append(
            'model.lora.target_modules: found "all-linear" on a mixture of experts, where it '
            'adapts the router too; names, as ["q_proj", "k_proj", "v_proj", "o_proj"]'
        )
    elif wrong := sorted(EXPERT_MODULES.intersection(lora.target_modules)):
        found.append(
            f"model.lora.target_modules: found {', '.join(wrong)} on a mixture of experts; "
            'attention only, and target_parameters = ["mlp.experts.gate_up_proj", '
            '"mlp.experts.down_proj"] for the experts'
        )
    return found
