"""Draws of a function or a model in the test's process, as an oracle makes them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.numbers.called import dtype_name
from forge.evalpool.judge.numbers.given import Terms
from forge.evalpool.judge.numbers.opcount import count_work
from forge.evalpool.judge.wide.sets import Draws, WideDraw


class Function(torch.nn.Module):
    """A function as a reference."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def draw(
    reference: torch.nn.Module | Callable[..., Any],
    make_inputs: Callable[[], list[Any]],
    *,
    is_plain: bool = False,
) -> WideDraw:
    """The input sets that a judge would make for a reference."""
    model = reference if isinstance(reference, torch.nn.Module) else Function(reference)
    terms = Terms(
        precision="fp32", device="cpu", is_tf32=False, max_bytes=1 << 30, is_plain=is_plain
    )
    module = SimpleNamespace(get_inputs=make_inputs)
    with torch.no_grad():
        counted = count_work(model, make_inputs())
        return Draws(module, model, terms=terms, counted=counted, source="").make(5)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(dtype_name(tensor), tuple(tensor.shape))


def to_bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
