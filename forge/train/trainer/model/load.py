"""Loading the model that a stage trains: all its weights, or an adapter on a base that may be in
NF4, fused experts of a mixture included.

transformers quantizes linear layers only, and a mixture's experts are 3-D parameters: 90 % of the
model. Here they are quantized with bitsandbytes while the model is loaded, one parameter at a time,
so that no more than one of them is on the GPU in 16 bits. During a layer's forward pass they are
expanded for that layer. Routers stay in 16 bits.

LoRA on fused experts: the update is added to the expanded weights of a layer during its forward
pass. PEFT 0.21 supports this for parameters in full precision. On a quantized one it leaves its
update in place after the pass, and under nested adapters it reads a cached value without it.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora.layer import ParamWrapper, _LoraFactorsProxy
from torch.nn.utils.parametrize import cached
from transformers import BitsAndBytesConfig, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer

from forge.errors import ConfigError
from forge.train.trainer.child.settings import TrainerSettings, model_class, uses_fsdp
from forge.train.trainer.packed.sequences import ATTENTION, register_attention

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


QUANT_TYPE = "nf4"
_METHOD = "bitsandbytes_4bit"
"""transformers' name of the quantizer that is replaced."""
_EXPERTS = "experts"
"""Name of the module that holds a layer's fused experts, in all architectures of transformers."""
_ROUTERS = ("router", "gate")


def fused_experts(model: torch.nn.Module) -> list[str]:
    """Names of the fused experts of a model, quantized or not, as its class orders them."""
    return [
        f"{path}.{name}"
        for path, module in model.named_modules()
        if path.rpartition(".")[2] == _EXPERTS
        for name in _fused_of(module)
    ]


def in_4_bits(table: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments of `from_pretrained` for `[model.quantize]`: made on this rank's GPU, where the
    weights stay. Empty without the table."""
    if table is None:
        return {}
    config = BitsAndBytesConfig(
        load_in_4bit=table["bits"] == 4,
        bnb_4bit_quant_type=QUANT_TYPE,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    return {
        "quantization_config": config,
        "device_map": {"": rank if torch.cuda.is_available() else "cpu"},
    }


@contextmanager
def experts_quantized() -> Iterator[None]:
    """Within it, a model that transformers loads in 4 bits gets its fused experts quantized too."""
    known = AUTO_QUANTIZER_MAPPING[_METHOD]
    AUTO_QUANTIZER_MAPPING[_METHOD] = _Quantizer
    try:
        yield
    finally:
        AUTO_QUANTIZER_MAPPING[_METHOD] = known


class _Quantizer(Bnb4BitHfQuantizer):
    """transformers' quantizer for bitsandbytes, and fused experts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.states: dict[str, Any] = {}
        """Scales of each quantized parameter, by name, until the model is loaded."""

    def param_needs_quantization(
        self, model: PreTrainedModel, param_name: str, **kwargs: Any
    ) -> bool:
        """True for weights of linear layers and for fused experts."""
        if _is_fused(model, param_name):
            return True
        return super().param_needs_quantization(model, param_name, **kwargs)

    def get_quantize_ops(self) -> Any:
        """The operation for both."""
        return _Quantize(self)

    def get_modules_to_not_convert(self, model: Any, *args: Any, **kwargs: Any) -> list[str]:
        """transformers' exceptions (the output layer), and routers."""
        kept: list[str] = super().get_modules_to_not_convert(model, *args, **kwargs)
        return [*kept, *_routers(model)]

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        from bitsandbytes.nn.parametrize import replace_parameter_4bit_prequantized  # pyright: ignore[reportMissingImports]

        for path, stored in list(model.named_parameters()):
            if (state := self.states.get(path)) is not None:
                module, _, name = path.rpartition(".")
                replace_parameter_4bit_prequantized(
                    model.get_submodule(module),
                    name,
                    state.as_dict(packed=True),
                    device=stored.device,
                )
        self.states.clear()
        return super()._process_model_after_weight_loading(model, **kwargs)


class _Quantize(ConversionOps):
    """Quantizes what transformers has just read."""

    def __init__(self, quantizer: _Quantizer) -> None:
        self._quantizer = quantizer

    def convert(self, input_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Quantized parameters by name."""
        from bitsandbytes.functional import quantize_4bit  # pyright: ignore[reportMissingImports]

        model, quantizer = kwargs["model"], self._quantizer
        found, linear = dict[str, Any](), dict[str, Any]()
        for name, value in input_dict.items():
            if not _is_fused(model, name):
                linear[name] = value
                continue
            weight = value[0] if isinstance(value, list) else value
            packed, quantizer.states[name] = quantize_4bit(
                weight,
                compress_statistics=quantizer.quantization_config.bnb_4bit_use_double_quant,
                quant_type=QUANT_TYPE,
            )
            found[name] = torch.nn.Parameter(packed, requires_grad=False)
        if linear:
            theirs = Bnb4BitHfQuantizer.get_quantize_ops(quantizer)
            found |= theirs.convert(linear, *args, **kwargs)
        return found


def _is_fused(model: torch.nn.Module, path: str) -> bool:
    module, _, name = path.rpartition(".")
    if module.rpartition(".")[2] != _EXPERTS:
        return False
    return name in _fused_of(model.get_submodule(module))


def _fused_of(module: torch.nn.Module) -> list[str]:
    """Names of a module's own 3-D parameters, also quantized ones."""
    own = [name for name, p in module.named_parameters(recurse=False) if p.dim() == 3]
    return [*own, *getattr(module, "parametrizations", ())]


def _routers(model: torch.nn.Module) -> list[str]:
    """Names of the routers: modules beside a layer's experts."""
    found: list[str] = []
    for path, module in model.named_modules():
        if isinstance(getattr(module, _EXPERTS, None), torch.nn.Module):
            found += [f"{path}.{each}" for each in _ROUTERS if hasattr(module, each)]
    return found


class QuantizedExperts(ParamWrapper):
    """PEFT's adapter of one parameter, for a quantized one."""

    @property
    def _stored(self) -> Any:
        """Steps from the stored weight to the one in use: expand it, then add updates."""
        base: Any = self.get_base_layer()
        return base.parametrizations[self.parameter_name]

    def get_param(self) -> torch.Tensor:
        """A tensor with shape, type and device of the weight and without its values, which are
        expensive to expand."""
        state = self._stored[0].quant_state
        return torch.empty((), dtype=state.dtype, device=self._stored.original.device).expand(
            *state.shape
        )

    @contextmanager
    def _activate_lora(self, active_adapters: Sequence[str]) -> Iterator[None]:
        names = [name for name in active_adapters if name in self.lora_A]
        for name in names:
            self._stored.append(_LoraFactorsProxy(*self.get_delta_factors(name)))
        try:
            with cached():
                yield
        finally:
            del self._stored[len(self._stored) - len(names) :]


def support_quantized_experts(model: torch.nn.Module) -> None:
    """Make PEFT's adapters of quantized parameters work, and nest them as on a base in full
    precision, which gives them the names that other programs load. Call it after an adapter was
    added."""
    for name, module in list(model.named_modules()):
        chain = _chain(module)
        if not chain or name.endswith(".base_layer"):
            continue
        for each in chain:
            each.__class__ = QuantizedExperts
        base = chain[-1].base_layer
        order = list(base.parametrizations)
        inner = base
        for each in sorted(chain, key=lambda wrapper: order.index(wrapper.parameter_name)):
            each.base_layer = inner
            inner = each
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, inner)


def _chain(module: Any) -> list[Any]:
    """The adapters of quantized parameters around one module, the outermost first."""
    found: list[Any] = []
    while isinstance(module, ParamWrapper):
        found.append(module)
        module = module.base_layer
    if not found or not isinstance(getattr(module, "parametrizations", None), torch.nn.ModuleDict):
        return []
    return found
