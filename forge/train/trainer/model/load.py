"""Loading the model that a stage trains: all its weights, or an adapter on a base that may be
quantized.

Called by `sft.stage` and `grpo.stage`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import trl.trainer.utils

from forge.train.trainer.model.attention import ATTENTION, register_attention

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel

    from forge.train.trainer.child.settings import TrainerSettings


_ATTENTIONS = {"auto": None, "sdpa": "sdpa", "flash": "flash_attention_2"}


def load_model(settings: TrainerSettings) -> PreTrainedModel | PeftModel:
    """The checkpoint, with the stage's adapter on it if there is one.

    By default in f32, also on a GPU (where autocast computes in bf16): bf16 weights would round
    small updates away. A base under an adapter is not updated, so there it is bf16 on a GPU."""
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
        **_quantization(settings),
    )
    if settings.adapter is None:
        return model
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(settings.adapter), is_trainable=True)


def weights_dtype(settings: TrainerSettings) -> torch.dtype:
    """`model.dtype`; for auto, f32 if all weights are trained or there is no GPU."""
    if settings.model["dtype"] != "auto":
        return getattr(torch, settings.model["dtype"])
    is_frozen = settings.adapter is not None or settings.model["lora"] is not None
    return torch.bfloat16 if is_frozen and torch.cuda.is_available() else torch.float32


def new_adapter(settings: TrainerSettings) -> LoraConfig | None:
    """`[model.lora]` as PEFT names it; None for full training, and if an earlier stage's adapter is
    trained further.

    `target_parameters` are the fused experts of a mixture, which are not modules."""
    lora = settings.model["lora"]
    if lora is None or settings.adapter is not None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=lora["r"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        target_modules=lora["target_modules"],
        target_parameters=lora["target_parameters"] or None,
        task_type="CAUSAL_LM",
    )


def score_labelled_positions_only() -> None:
    """Make the language-model head of TRL 1.16 score only labelled positions on CPU too. Call it
    before the trainer is made.

    TRL's fused head does so on a GPU. Without a Triton device it scores every position, prompts and
    padding included, and discards most of the result, to avoid recompilation on other
    accelerators; a CPU compiles nothing. The values are the same. Measured with 1M parameters,
    16 × 350 tokens, 60 % labelled: the head took a quarter of the step, now a tenth."""
    trl.trainer.utils._use_triton = _picks_labelled  # pyright: ignore[reportPrivateImportUsage]


def _picks_labelled(device: torch.device) -> bool:
    return device.type in ("cpu", "cuda")


def _attention(settings: TrainerSettings) -> dict[str, Any]:
    """Arguments for the stage's attention: over shared prefixes, or a named one. The placement has
    resolved "auto" where flash is better; otherwise it is the model's own default."""
    if settings.shares_prefixes:
        register_attention()
        return {"attn_implementation": ATTENTION}
    name = _ATTENTIONS[settings.stage["attention"]]
    return {} if name is None else {"attn_implementation": name}


def _quantization(settings: TrainerSettings) -> dict[str, Any]:
    """`[model.quantize]` as transformers names it: the frozen base in NF4 by bitsandbytes, made on
    this rank's GPU, where it stays."""
    table = settings.model["quantize"]
    if table is None:
        return {}
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=table["bits"] == 4,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=table["double_quant"],
        bnb_4bit_compute_dtype=getattr(torch, table["compute_dtype"]),
    )
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    return {
        "quantization_config": config,
        "device_map": {"": rank if torch.cuda.is_available() else "cpu"},
    }
