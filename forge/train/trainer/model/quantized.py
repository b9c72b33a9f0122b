"""The frozen base of an adapter in NF4, fused experts of a mixture included.

transformers quantizes linear layers only, and a mixture's experts are 3-D parameters: 90 % of the
model. Here they are quantized with bitsandbytes while the model is loaded, one parameter at a time,
so that no more than one of them is on the GPU in 16 bits. During a layer's forward pass they are
expanded for that layer. Routers stay in 16 bits.

LoRA on fused experts: the update is added to the expanded weights of a layer during its forward
pass. PEFT 0.21 supports this for parameters in full precision. On a quantized one it leaves its
update in place after the pass, and under nested adapters it reads a cached value without it.

Called by `load`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora.layer import ParamWrapper, _LoraFactorsProxy
from torch.nn.utils.parametrize import cached
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer

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
