"""Constructs models from their entry points, and reports the parameters that they make.

Called by oracles, examiners and captures.
"""

from __future__ import annotations

from contextlib import contextmanager
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
