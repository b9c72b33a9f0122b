"""LoRA on fused experts that are quantized: the update is added to the expanded weights of a layer
during its forward pass.

PEFT 0.21 supports this for parameters in full precision. On a quantized one it leaves its update in
place after the pass, and under nested adapters it reads a cached value without it.

Called by `load`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora.layer import ParamWrapper, _LoraFactorsProxy
from torch.nn.utils.parametrize import cached


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
