"""Loading the model that a stage trains: all its weights, or an adapter on a base that may be
quantized.

Called by `sft.stage` and `grpo.stage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import trl.trainer.utils

from forge.errors import ConfigError
from forge.train.trainer.child.settings import model_class
from forge.train.trainer.model.attention import ATTENTION, register_attention
from forge.train.trainer.model.quantized import experts_quantized, fused_experts, in_4_bits

if TYPE_CHECKING:
    from pathlib import Path

    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedConfig, PreTrainedModel

    from forge.train.trainer.child.settings import TrainerSettings


_ATTENTIONS = {"auto": None, "sdpa": "sdpa", "flash": "flash_attention_2"}


def load_model(settings: TrainerSettings) -> PreTrainedModel | PeftModel:
    """The checkpoint, with the stage's adapter on it if there is one.

    By default in f32, also on a GPU (where autocast computes in bf16): bf16 weights would round
    small updates away. A base under an adapter is not updated, so there it is bf16 on a GPU."""
    trust = settings.model["trust_remote_code"]
    kind = model_class(settings.model_dir, trust_remote_code=trust)
    with experts_quantized(), _attention_refused(settings):
        model, report = kind.from_pretrained(
            settings.model_dir,
            config=_config(settings),
            dtype=weights_dtype(settings),
            trust_remote_code=trust,
            output_loading_info=True,
            **_attention(settings),
            **in_4_bits(settings.model["quantize"]),
        )
    if missing := sorted(map(str, report["missing_keys"])):  # they would be random
        raise ConfigError(
            f"model.path: {settings.model_dir} has no tensor for {len(missing)} of its "
            f"parameters, as {missing[0]}"
        )
    if settings.adapter is None:
        return model
    return _with_adapter(model, settings.adapter)


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


def new_adapter(settings: TrainerSettings, model: torch.nn.Module) -> LoraConfig | None:
    """`[model.lora]` as PEFT names it; None for full training, and if an earlier stage's adapter is
    trained further.

    `target_parameters` are the fused experts of a mixture, which are not modules. PEFT has no
    dropout for them and refuses the rate: `finish_adapter` sets it on the modules."""
    lora = settings.model["lora"]
    if lora is None or settings.adapter is not None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=lora["r"],
        lora_alpha=lora["alpha"],
        lora_dropout=0.0 if lora["target_parameters"] else lora["dropout"],
        target_modules=lora["target_modules"],
        target_parameters=_full_names(lora["target_parameters"], model),
        task_type="CAUSAL_LM",
    )


def finish_adapter(model: torch.nn.Module, settings: TrainerSettings) -> None:
    """Complete an adapter that PEFT has put on the model: support for quantized experts, and the
    dropout of `[model.lora]` on the modules if parameters are adapted too. The adapter's own config
    has no dropout then."""
    lora = settings.model["lora"]
    if lora is None or not lora["target_parameters"]:
        return
    from peft.tuners.lora import LoraLayer
    from peft.tuners.lora.layer import ParamWrapper

    from forge.train.trainer.model.quantized import support_quantized_experts

    support_quantized_experts(model)
    for module in model.modules():
        if isinstance(module, LoraLayer) and not isinstance(module, ParamWrapper):
            for name in module.lora_dropout if lora["dropout"] else ():
                module.lora_dropout[name] = torch.nn.Dropout(lora["dropout"])


def _full_names(names: Sequence[str] | None, model: torch.nn.Module) -> list[str] | None:
    """Names of parameters to adapt: full ones if the model is quantized, since PEFT finds a
    quantized parameter only so."""
    if not names or not getattr(model, "is_loaded_in_4bit", False):
        return list(names or ()) or None
    experts = fused_experts(model)
    full = [each for each in experts if any(f".{each}".endswith(f".{name}") for name in names)]
    return full or list(names)


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


@contextmanager
def _attention_refused(settings: TrainerSettings) -> Iterator[None]:
    """Raise ConfigError for an attention that the model's class does not have."""
    try:
        yield
    except ValueError as error:
        name = settings.stage["attention"]
        if name == "auto" or "does not support" not in str(error):
            raise
        kind = str(error).split()[0]
        raise ConfigError(
            f'attention: found "{name}", which {kind} does not have; "auto"'
        ) from error


def _attention(settings: TrainerSettings) -> dict[str, Any]:
    """Arguments for the stage's attention: over shared prefixes, or a named one. The placement has
    resolved "auto" where flash is better; otherwise it is the model's own default."""
    if settings.shares_prefixes:
        register_attention()
        return {"attn_implementation": ATTENTION}
    name = _ATTENTIONS[settings.stage["attention"]]
    return {} if name is None else {"attn_implementation": name}
