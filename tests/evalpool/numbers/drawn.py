"""Draws of a problem in the test's process: which answers the judge's own numbers refuse."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.numbers.called import dtype_name, flatten
from forge.evalpool.judge.numbers.compare import Expected, mismatch
from forge.evalpool.judge.numbers.errors.own_error import count_work
from forge.evalpool.judge.numbers.gpu_compare import Allowed
from forge.evalpool.judge.numbers.gpu_compare import mismatch as gpu_mismatch
from forge.evalpool.judge.numbers.inputs import parameters
from forge.evalpool.judge.numbers.inputs.edges import Edges
from forge.evalpool.judge.numbers.inputs.given import Terms
from forge.evalpool.judge.numbers.inputs.input_sets import make_sets

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.numbers.input_set import InputSet

NUM_SETS = 4
"""Input sets of a judge on a CPU."""


class Function(torch.nn.Module):
    """A reference without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


@dataclass
class Drawn:
    """One draw: a model with moved parameters, input sets, and what is expected."""

    model: torch.nn.Module
    sets: list[InputSet]
    expected: list[list[Expected]]
    precision: str

    def refusals(self, answer: Callable[..., Any]) -> dict[str, str]:
        """By variant, the mismatch of an answer; a variant where it is accepted is missing."""
        found: dict[str, str] = {}
        for number, one in enumerate(self.sets):
            inputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in one.inputs]
            got = flatten(answer(*inputs))
            for expected, output in zip(self.expected[number], got, strict=True):
                assert list(output.shape) == list(expected.spec.shape)
                words = mismatch(expected, to_bytes(output))
                if words is not None:
                    found.setdefault(one.variant, words)
        return found

    def refusals_on_a_gpu(self, answer: Callable[..., Any]) -> dict[str, str]:
        """The same by the comparison for GPUs."""
        found: dict[str, str] = {}
        for one in self.sets:
            rights = zip(flatten(answer(*one.inputs)), one.outputs, one.errors, strict=True)
            for got, output, error in rights:
                allowed = Allowed.of(output, error, precision=self.precision)
                if (words := gpu_mismatch(got, output, allowed=allowed)) is not None:
                    found.setdefault(one.variant, words)
        return found


def draw(
    reference: torch.nn.Module | Callable[..., Any],
    make_inputs: Callable[[], list[Any]],
    *,
    precision: str = "fp32",
    num_sets: int = NUM_SETS,
    is_tf32: bool = False,
    max_bytes: int = 1 << 30,
) -> Drawn:
    """The input sets that a judge would make for a reference."""
    is_model = isinstance(reference, torch.nn.Module)
    model = reference if is_model else Function(reference)
    terms = Terms(
        precision=precision, device="cpu", is_tf32=is_tf32, max_bytes=max_bytes, is_plain=False
    )
    module = SimpleNamespace(get_inputs=make_inputs)
    with torch.no_grad():
        counted = count_work(model, make_inputs())
        edges = Edges.of(counted, "")
        parameters.move(model, is_tf32=is_tf32, sign=edges.sign)
        known: Any = {"edges": edges}
        if counted is not None:
            known["operations"] = counted.work
        sets = make_sets(module, model, num_sets=num_sets, terms=terms, **known)
    expected = [
        [
            Expected.make(spec_of(output), to_bytes(output), error=to_bytes(e), precision=precision)
            for output, e in zip(one.outputs, one.errors, strict=True)
        ]
        for one in sets
    ]
    return Drawn(model, sets, expected, precision)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(dtype_name(tensor), tuple(tensor.shape))


def to_bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
