"""The tensors of a model: those that a `state_dict` has, and those that none has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of a model that no `state_dict` has: an attribute of a module, an element of a list,
    tuple or dict that is one, or a buffer that is not saved."""

    name: str
    """As in a `state_dict`: `layers.0.h0`, `states.1`."""
    tensor: torch.Tensor
    owner: dict[str, Any]
    attribute: str
    key: Any = None
    """Its place in the attribute; None for the attribute itself."""

    def replace(self, tensor: torch.Tensor) -> None:
        """Puts another tensor in its place."""
        within = self.owner[self.attribute]
        if self.key is None:
            self.owner[self.attribute] = tensor
        elif isinstance(within, tuple):
            self.owner[self.attribute] = (*within[: self.key], tensor, *within[self.key + 1 :])
        else:
            within[self.key] = tensor


def held_tensors(model: Any) -> Iterator[Held]:
    """The tensors of a model that no `state_dict` has by any name."""
    modules = dict(_modules(model))
    saved = {id(one) for one in saved_tensors(model)}
    known = vars(torch.nn.Module())
    for prefix, module in modules.items():
        own = vars(module)
        places = [(own, key, value) for key, value in own.items() if key not in known]
        places += [(module._buffers, key, value) for key, value in module._buffers.items()]
        for owner, attribute, value in places:
            name = f"{prefix}.{attribute}" if prefix else attribute
            found = [Held(name, value, owner, attribute)]
            if type(value) in (list, tuple, dict):
                pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
                found = [Held(f"{name}.{at}", one, owner, attribute, at) for at, one in pairs]
            for one in found:
                if isinstance(one.tensor, torch.Tensor) and id(one.tensor) not in saved:
                    yield one


def saved_tensors(model: Any) -> Iterator[torch.Tensor]:
    """Parameters and saved buffers of a model, whatever methods of its class are replaced."""
    for _, module in _modules(model):
        yield from (one for one in module._parameters.values() if one is not None)
        for name, one in module._buffers.items():
            if one is not None and name not in module._non_persistent_buffers_set:
                yield one


def _modules(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """A model and the modules within it, each once, by name."""
    left: list[tuple[str, Any]] = [("", model)]
    seen: set[int] = set()
    while left:
        prefix, module = left.pop(0)
        if isinstance(module, torch.nn.Module) and id(module) not in seen:
            seen.add(id(module))
            yield prefix, module
            start = f"{prefix}." if prefix else ""
            left += [(f"{start}{name}", one) for name, one in module._modules.items()]
