"""Draws of a problem in the test's process: which answers the judge's own numbers refuse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.numbers import parameters
from forge.evalpool.judge.numbers.called import call, dtype_name
from forge.evalpool.judge.numbers.given import Terms
from forge.evalpool.judge.numbers.opcount import count_work
from forge.evalpool.judge.wide.compare import SAME_FUNCTION, Question, Wanted, agrees, real_question
from forge.evalpool.judge.wide.reference import WideReference
from forge.evalpool.judge.wide.sets import WideDraw, make_wide_sets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.judge.wide.sets import InputSet

NUM_SETS = 5


class Function(torch.nn.Module):
    """A function as a reference or an answer, of inputs alone or of a model and inputs."""

    def __init__(self, function: Callable[..., Any], *models: torch.nn.Module) -> None:
        super().__init__()
        self.function = function
        self.models = torch.nn.ModuleList(models)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*self.models, *inputs)


@dataclass
class Drawn:
    """One draw: a model with moved parameters, and input sets."""

    model: torch.nn.Module
    found: WideDraw

    def is_same(self, answer: torch.nn.Module) -> bool:
        """Question 1 of an answer; where there is no float64, question 2 on all sets."""
        if not self.found.kinds:
            return self._is_near(answer, [*self.found.sets])
        wide = WideReference(answer, self.found.kinds, source="", own=torch.float32)
        return all(
            _agree(wide.run(one.inputs, []).outputs, one.wide or (), lambda _: SAME_FUNCTION)
            for one in self.found.sets
        )

    def _is_near(self, answer: torch.nn.Module, sets: Sequence[InputSet]) -> bool:
        def question(dtype: str, slack: float) -> Question:
            real = real_question(dtype, "fp32")
            return replace(real, tolerance=real.tolerance * slack)

        return all(
            _agree(
                call(answer, one.inputs).outputs,
                one.outputs,
                lambda dtype, slack=one.slack: question(dtype, slack),
            )
            for one in sets
        )


def _agree(
    got: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    question: Callable[[str], Question],
) -> bool:
    assert [one.shape for one in got] == [one.shape for one in outputs]
    return all(
        agrees(
            Wanted(spec=spec_of(wanted), data=to_bytes(wanted), question=question(dtype_name(one))),
            to_bytes(one.to(wanted.dtype)),
        )
        for one, wanted in zip(got, outputs, strict=True)
    )


def draw(
    reference: torch.nn.Module | Callable[..., Any],
    make_inputs: Callable[[], list[Any]],
    *,
    precision: str = "fp32",
    num_sets: int = NUM_SETS,
    is_plain: bool = False,
) -> Drawn:
    """The input sets that a judge would make for a reference."""
    is_model = isinstance(reference, torch.nn.Module)
    model = reference if is_model else Function(reference)
    terms = Terms(
        precision=precision, device="cpu", is_tf32=False, max_bytes=1 << 30, is_plain=is_plain
    )
    module = SimpleNamespace(get_inputs=make_inputs)
    with torch.no_grad():
        counted = count_work(model, make_inputs())
        if not is_plain:
            sign = 0 if counted is None else parameters.sign_of(counted.names)
            parameters.move(model, sign=sign)
        found = make_wide_sets(
            module, model, num_sets=num_sets, terms=terms, counted=counted, source=""
        )
    return Drawn(model, found)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(dtype_name(tensor), tuple(tensor.shape))


def to_bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
