"""Loading the model that a stage trains: all its weights, or an adapter on a base that may be
quantized."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from forge.errors import ConfigError
from forge.train.trainer.child.settings import model_class, uses_fsdp
from forge.train.trainer.model.quantized import experts_quantized, fused_experts, in_4_bits
from forge.train.trainer.packed.attention import ATTENTION, register_attention

if TYPE_CHECKING:
    from pathlib import Path

    from peft import PeftModel
    from transformers import PreTrainedConfig, PreTrainedModel

    from forge.train.trainer.child.settings import TrainerSettings


BACKEND = "inductor"
"""Compiler of blocks."""


def load_model(settings: TrainerSettings) -> PreTrainedModel | PeftModel:
    """The checkpoint, with an earlier stage's adapter or a new one on it if there is one; its
    blocks recomputed and compiled as the stage says."""
    model = load_base(settings)
    _set_blocks(model, settings)
    if settings.adapter is not None:
        model = _with_adapter(model, settings.adapter)
    elif settings.model["lora"] is not None:
        model = _with_new_adapter(model, settings.model["lora"])
    else:
        return model
    if settings.recomputes:  # a frozen embedding has no gradient to recompute a block for
        model.enable_input_require_grads()
    if settings.model["quantize"] is not None:  # as in QLoRA, arXiv 2305.14314, section 3
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16)
    return model


def _set_blocks(model: PreTrainedModel, settings: TrainerSettings) -> None:
    recomputed: float = settings.recomputes
    if recomputed is True:
        recomputed = 0 if uses_fsdp(settings) else math.inf  # accelerate wraps all blocks for FSDP
    if recomputed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    blocks = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    for number, block in enumerate(blocks):
        block.gradient_checkpointing = number < recomputed
        if settings.stage["compile"]:
            _compile(block)


def _compile(block: Any) -> None:
    """Compile a block: its call, or what is recomputed of it, since torch compiles no call with a
    recomputation in it. transformers before 5.20 recomputes the call, later versions `forward`."""
    if not block.gradient_checkpointing or "__call__" in vars(GradientCheckpointingLayer):
        block.compile(dynamic=True, backend=BACKEND)
        return
    outer = block._gradient_checkpointing_func
    forward = torch.compile(inspect.unwrap(type(block).forward), dynamic=True, backend=BACKEND)

    def recomputed(call: partial, *args: Any) -> Any:
        return outer(partial(forward, *call.args, **call.keywords), *args)

    block._gradient_checkpointing_func = recomputed


def load_base(settings: TrainerSettings) -> PreTrainedModel:
    """The checkpoint alone.

    By default in f32, also on a GPU (where autocast computes in bf16): bf16 weights would round
    small updates away. A base under an adapter is not updated, so there it is bf16 on a GPU."""
    trust = settings.model["trust_remote_code"]
    kind = model_class(settings.model_dir, trust_remote_code=trust)
    if settings.is_packed:
        register_attention()
    with experts_quantized():
        model, report = kind.from_pretrained(
            settings.model_dir,
            config=_config(settings),
            dtype=weights_dtype(settings),
            trust_remote_code=trust,
            output_loading_info=True,
            **({"attn_implementation": ATTENTION} if settings.is_packed else {}),
            **in_4_bits(settings.model["quantize"]),
        )
    if missing := sorted(map(str, report["missing_keys"])):  # they would be random
        raise ConfigError(
            f"model.path: {settings.model_dir} has no tensor for {len(missing)} of its "
            f"parameters, as {missing[0]}"
        )
    return model


def _with_adapter(model: PreTrainedModel, path: Path) -> PeftModel:
    """The model with an adapter of an earlier stage, to be trained further."""
    from peft import PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict
    from peft.utils.save_and_load import load_peft_weights

    given: Any = PeftConfig.from_pretrained(str(path))
    names = _full_names(given.target_parameters, model)
    if not names or not getattr(model, "is_loaded_in_4bit", False):
        return PeftModel.from_pretrained(model, str(path), is_trainable=True)
    from forge.train.trainer.model.quantized import support_quantized_experts

    given.target_parameters, given.inference_mode = names, False
    adapted: Any = get_peft_model(model, given)
    support_quantized_experts(adapted)
    set_peft_model_state_dict(adapted, load_peft_weights(str(path), device="cpu"))
    return adapted


def weights_dtype(settings: TrainerSettings) -> torch.dtype:
    """`model.dtype`; for auto, f32 if all weights are trained or there is no GPU."""
    if settings.model["dtype"] != "auto":
        return getattr(torch, settings.model["dtype"])
    is_frozen = settings.adapter is not None or settings.model["lora"] is not None
    return torch.bfloat16 if is_frozen and torch.cuda.is_available() else torch.float32


def _with_new_adapter(model: PreTrainedModel, lora: Mapping[str, Any]) -> PeftModel:
    """The model with `[model.lora]`.

    `target_parameters` are the fused experts of a mixture, which are not modules. PEFT has no
    dropout for them and refuses the rate: it is set on the modules afterwards, and the adapter's
    own config has none then."""
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer
    from peft.tuners.lora.layer import ParamWrapper

    names = _full_names(lora["target_parameters"], model)
    config = LoraConfig(
        r=lora["r"],
        lora_alpha=lora["alpha"],
        lora_dropout=0.0 if names else lora["dropout"],
        target_modules=lora["target_modules"],
        target_parameters=names,
        task_type="CAUSAL_LM",
    )
    adapted: Any = get_peft_model(model, config)
    if names:
        from forge.train.trainer.model.quantized import support_quantized_experts

        support_quantized_experts(adapted)
        for module in adapted.modules():
            if isinstance(module, LoraLayer) and not isinstance(module, ParamWrapper):
                for name in module.lora_dropout if lora["dropout"] else ():
                    module.lora_dropout[name] = torch.nn.Dropout(lora["dropout"])
    return adapted


def _full_names(names: Sequence[str] | None, model: torch.nn.Module) -> list[str] | None:
    """Names of parameters to adapt: full ones if the model is quantized, since PEFT finds a
    quantized parameter only so."""
    if not names or not getattr(model, "is_loaded_in_4bit", False):
        return list(names or ()) or None
    experts = fused_experts(model)
    full = [each for each in experts if any(f".{each}".endswith(f".{name}") for name in names)]
    return full or list(names)


def _config(settings: TrainerSettings) -> PreTrainedConfig:
    """The model's config, without dropout for grpo: the engine that played the samples has none."""
    from transformers import AutoConfig

    trust = settings.model["trust_remote_code"]
    config = AutoConfig.from_pretrained(settings.model_dir, trust_remote_code=trust)
    text = config.get_text_config()
    for name in [n for n in vars(text) if n.endswith(("dropout", "pdrop"))]:
        if settings.stage["kind"] == "grpo":
            setattr(text, name, 0.0)
    return config
