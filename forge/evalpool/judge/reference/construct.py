"""Constructs models from their entry points, and reports the parameters that they make and the
other tensors that they hold.

Called by oracles, examiners and captures.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.numbers.constructor import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forge.evalpool.judge.numbers.constructor import Arguments


class Bare(torch.nn.Module):
    """A function that is the entry point of a problem or an answer, as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        """Calls the function."""
        return self.function(*inputs)


def construct(entry_point: Any, arguments: Arguments) -> Any:
    """The model of an entry point: an instance of a class, or a function."""
    return call(entry_point, arguments) if isinstance(entry_point, type) else Bare(entry_point)


@contextmanager
def parameters_made(note: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Calls `note` with every new nn.Parameter while inside."""
    original = torch.nn.Parameter.__new__

    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        parameter = original(cls, *args, **kwargs)
        note(parameter)
        return parameter

    torch.nn.Parameter.__new__ = staticmethod(make)
    try:
        yield
    finally:
        torch.nn.Parameter.__new__ = staticmethod(original)


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of a model that is neither a parameter nor a buffer: an attribute of a module, or an
    element of a list or dict that is one."""

    name: str
    """As in a `state_dict`: `layers.0.h0`, `states.1`."""
    tensor: torch.Tensor
    owner: Any
    key: Any

    def replace(self, tensor: torch.Tensor) -> None:
        """Puts another tensor in its place."""
        self.owner[self.key] = tensor


def held_tensors(model: Any) -> Iterator[Held]:
    """The tensors of a model that no `state_dict` has."""
    if not isinstance(model, torch.nn.Module):
        return
    known = vars(torch.nn.Module())
    for prefix, module in model.named_modules():
        own = {key: value for key, value in vars(module).items() if key not in known}
        for key, value in own.items():
            name = f"{prefix}.{key}" if prefix else key
            items: list[tuple[str, Any, Any, Any]] = [(name, value, vars(module), key)]
            if isinstance(value, list | dict):
                pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
                items = [(f"{name}.{at}", one, value, at) for at, one in pairs]
            for each in items:
                if isinstance(each[1], torch.Tensor):
                    yield Held(*each)
