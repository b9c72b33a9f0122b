"""The model that a trainer trains: all of it, or an adapter on a base that may be quantised."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from forge.train.trainer.model.attention import ATTENTION, register_attention
from forge.train.trainer.model.quantize import quantization

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from forge.train.trainer.child.settings import TrainerSettings


def load_model(settings: TrainerSettings) -> PreTrainedModel | PeftModel:
    """The checkpoint, with the adapter on it where one is given.

    By default in f32, also on a GPU (where autocast computes in bf16): bf16 weights would round
    small updates away. A base under an adapter is not updated, so there it is bf16 on a GPU.
    """
    import transformers
    from transformers import AutoConfig

    trust = settings.model["trust_remote_code"]
    config = AutoConfig.from_pretrained(settings.model_dir, trust_remote_code=trust)
    names = config.architectures or ()
    architecture = getattr(transformers, names[0], None) if names else None
    model = (architecture or transformers.AutoModelForCausalLM).from_pretrained(
        settings.model_dir,
        dtype=weights_dtype(settings),
        trust_remote_code=trust,
        **_attention(settings),
        **_on_own_gpu(settings),
    )
    if settings.adapter is None:
        return model
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(settings.adapter), is_trainable=True)


def weights_dtype(settings: TrainerSettings) -> torch.dtype:
    """`model.dtype`; for auto, f32 where all weights are trained or there is no GPU."""
    if settings.model["dtype"] != "auto":
        return getattr(torch, settings.model["dtype"])
    is_frozen = settings.adapter is not None or settings.model["lora"] is not None
    return torch.bfloat16 if is_frozen and torch.cuda.is_available() else torch.float32


def _attention(settings: TrainerSettings) -> dict[str, Any]:
    """One that takes samples with shared prefixes, where the stage asks for it."""
    if not settings.shares_prefixes:
        return {}
    register_attention()
    return {"attn_implementation": ATTENTION}


def _on_own_gpu(settings: TrainerSettings) -> dict[str, Any]:
    """4-bit weights are made where they stay: on this rank's GPU."""
    config = quantization(settings.model["quantize"])
    if config is None:
        return {}
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    return {
        "quantization_config": config,
        "device_map": {"": rank if torch.cuda.is_available() else "cpu"},
    }
