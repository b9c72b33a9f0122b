"""Combinations of stage and model that a trainer cannot train, found before it starts. No torch."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forge.config.schema import GrpoStage, LoraTable, ModelTable, SftStage

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
EXPERT_MODULES = frozenset({"gate", "router", "gate_proj", "up_proj", "down_proj"})
"""Module names that mean something else on a mixture than on a dense model: PEFT maps them to the
fused experts (gate_proj and up_proj with twice the rank), or they are the router."""

PACKED = frozenset({
    "afmoe", "deepseek_v3", "gemma3", "gemma3_text", "glm4", "glm4_moe", "granite", "llama",
    "ministral3", "mistral", "mixtral", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen2_moe",
    "qwen3", "qwen3_moe", "seed_oss", "smollm3",
})  # fmt: skip
"""Values of model_type for which `tests/train/test_architectures.py` compares losses and gradients
of packed sequences."""
OWN_CODE = "a model whose code is in its directory (auto_map), not in transformers"
STATEFUL = "a model with states (linear attention, Mamba, convolutions)"


def refusals(
    stage: SftStage | GrpoStage, *, model: ModelTable, model_dir: Path, num_gpus: int,
    has_experts: bool | None = None,
) -> list[str]:  # fmt: skip
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
    is_adapted = model.lora is not None or model.adapter is not None
    if (method := _quantized_by(model_dir)) and not (is_adapted and method == "bitsandbytes"):
        found.append(f"model.path: found weights that {method} quantized; the model in bf16")
    if has_own_code(model_dir) and not model.trust_remote_code:
        found.append(f"model.path: found {OWN_CODE}; model.trust_remote_code = true runs it")
    if stage.packing is True and (why := why_not_packed(model_dir)):
        found.append(f"packing: found true for {why}; false")
    if stage.offload and (num_gpus < 2 or stage.parallel == "ddp"):
        found.append(
            f'offload: found true with {num_gpus} trainer GPU(s), parallel = "{stage.parallel}"; '
            'false, or 2 GPUs or more with "fsdp2" or "auto"'
        )
    if model.quantize is not None and stage.parallel == "fsdp2":
        found.append('parallel: found "fsdp2" with model.quantize; "ddp" or "auto"')
    return found


def missing_package(stage: SftStage | GrpoStage, *, model: ModelTable) -> str | None:
    if find_spec("bitsandbytes") is not None:
        return None
    key = 'optimizer = "adamw_8bit"' if stage.optimizer == "adamw_8bit" else None
    if model.quantize is not None:
        key = "model.quantize"
    return key and f"{key} needs bitsandbytes, which is not installed: pip install bitsandbytes"


def is_mixture(model_dir: Path) -> bool:
    config = text_config(model_dir)
    return any(config.get(key) for key in EXPERT_KEYS)


def has_states(model_dir: Path) -> bool:
    """True if config.json names layers that carry a state from token to token."""
    config = text_config(model_dir)
    kinds = config.get("layer_types") or config.get("layers_block_type") or ()
    return any(key.startswith("mamba_") for key in config) or any(
        kind.startswith(("linear", "conv", "mamba", "hybrid", "recurrent")) for kind in kinds
    )


def why_not_packed(model_dir: Path) -> str:
    """The kind of model for which sequences cannot be packed; empty if they can."""
    kind = text_config(model_dir).get("model_type")
    if has_states(model_dir):
        return STATEFUL
    if kind is not None and kind not in PACKED:
        return f"a model of type {kind}, with which it is not tested"
    return ""


def has_own_code(model_dir: Path) -> bool:
    """True if config.json names code for a `model_type` that transformers does not have."""
    config, installed = _config(model_dir), find_spec("transformers")
    if "auto_map" not in config or installed is None or not installed.origin:
        return False
    kind = str(config.get("model_type")).replace("-", "_")
    return not Path(installed.origin).with_name("models").joinpath(kind).is_dir()


def _quantized_by(model_dir: Path) -> str:
    table: dict[str, Any] = _config(model_dir).get("quantization_config") or {}
    return str(table.get("quant_method") or "")


def _config(model_dir: Path) -> dict[str, Any]:
    path = model_dir / "config.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def text_config(model_dir: Path) -> dict[str, Any]:
    config = _config(model_dir)
    return config | (config.get("text_config") or {})


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
