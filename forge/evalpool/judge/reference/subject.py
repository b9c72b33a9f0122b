"""One problem's reference in an examiner: loaded, placed on a device, run on copies of its inputs.

Used by `examine.py`. Does to it what an oracle does, and nothing else.
"""

from __future__ import annotations

import copy
import os
import types
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.numbers.called import (
    Unjudgeable,
    flatten,
    leaves,
    on_device,
    replaced,
)
from forge.evalpool.judge.numbers.errors.own_error import (
    OwnErrors,
    count_work,
    errors_of,
    has_products,
    rounding_of,
)
from forge.evalpool.judge.numbers.file_inputs import constructor_arguments, make_inputs, run_source
from forge.evalpool.judge.numbers.gpu_compare import Allowed, is_near
from forge.evalpool.judge.numbers.held import held_tensors
from forge.evalpool.judge.numbers.inputs import parameters
from forge.evalpool.judge.numbers.inputs.draws import MAX_OWN_ERROR, MAX_TF32_ERROR
from forge.evalpool.judge.numbers.inputs.given import DTYPES
from forge.evalpool.judge.reference.construct import construct
from forge.evalpool.judge.reference.oracle import Describer
from forge.evalpool.judge.reference.stand_ins import replace_hub

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Outputs = list[torch.Tensor]
FILE = "problem.py"
"""Name of the problem's source in tracebacks."""


class Subject:
    """A problem's module and model, made by `load`. Each method may raise any error of the
    reference."""

    def __init__(self, module: Any, model: torch.nn.Module, *, request: dict[str, Any]) -> None:
        self.module = module
        self.model = model
        self.device = torch.device(request["device"])
        self.precision: str = request["precision"]
        self._entry_point: Any = None
        self._init: Any = None
        self.rounding = self.precision
        self.is_tf32 = request["tf32"] and self.device.type == "cuda" and self.precision == "fp32"

    @classmethod
    def load(cls, request: dict[str, Any]) -> Subject:
        """The module, and its model with parameters moved as for a candidate."""
        torch.backends.cuda.matmul.allow_tf32 = bool(request["tf32_products"])
        torch.backends.cudnn.allow_tf32 = bool(request["tf32"])
        replace_hub(request["source"])
        torch.manual_seed(int.from_bytes(os.urandom(8)) >> 1)
        module, init, model = on_device(request["device"], lambda: _constructed(request))
        if not isinstance(model, torch.nn.Module):
            raise Unjudgeable(f"the reference is a {type(model).__name__}, not a Module")
        parameters.move(model)
        subject = cls(module, model, request=request)
        subject.model = subject._in_place(model)
        subject._entry_point = getattr(module, request["entry_point"])
        subject._init = init
        return subject

    def _in_place(self, model: torch.nn.Module) -> torch.nn.Module:
        """A model on the device, in the problem's precision."""
        model = model.to(self.device)
        return model if self.precision == "fp32" else model.to(DTYPES[self.precision])

    def again(self) -> Subject:
        """Another model of the same constructor, with the parameters, buffers and other tensors of
        this one: all that an answer gets."""
        made = on_device(str(self.device), lambda: construct(self._entry_point, self._init))
        other = copy.copy(self)
        other.model = self._in_place(made)
        other.model.load_state_dict(self.model.state_dict())
        held = {one.name: one.tensor for one in held_tensors(self.model)}
        for one in held_tensors(other.model):
            if one.name in held:
                one.replace(held[one.name])
        return other

    def draw(self) -> list[Any]:
        """Fresh inputs, in the problem's precision; fp32 leaves what the problem made."""
        inputs = on_device(str(self.device), lambda: make_inputs(self.module))
        return replaced(list(inputs), lambda _, one: self._placed(one))

    def run(self, inputs: list[Any]) -> Outputs:
        """On copies, since a reference may work in place and keep statistics."""
        outputs = on_device(str(self.device), lambda: self._outputs(inputs))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return outputs

    def _outputs(self, inputs: list[Any]) -> Outputs:
        return flatten(copy.deepcopy(self.model)(*copy.deepcopy(inputs)))

    def try_run(self, inputs: list[Any]) -> Outputs | None:
        """None where it does not bear these inputs: so they matter to it."""
        try:
            return self.run(inputs)
        except Exception:
            return None

    def own_errors(self, inputs: list[Any], outputs: Outputs) -> OwnErrors:
        """Errors of eager against float64, as an oracle computes them; whether TF32 matters to
        this reference is known from then on, and where errors are large, which precision it rounds
        to: to watch a call takes another one."""
        if self.is_tf32:
            self.is_tf32 = has_products(count_work(self.model, inputs))
        found = self._own_errors(inputs, outputs)
        if found.largest > self.max_own_error and self.rounding == "fp32":
            self.rounding = rounding_of(count_work(self.model, inputs), self.precision)
            found = found if self.rounding == "fp32" else self._own_errors(inputs, outputs)
        return found

    def _own_errors(self, inputs: list[Any], outputs: Outputs) -> OwnErrors:
        terms = {"is_tf32": self.is_tf32, "precision": self.rounding}
        return errors_of(self.model, inputs, outputs, changed=[], **terms)

    @property
    def max_own_error(self) -> float:
        """In tolerances: beyond it a judge refuses the problem."""
        return MAX_TF32_ERROR if self.is_tf32 else MAX_OWN_ERROR

    def is_repeated(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """To the bit; on a GPU, where sums may come in another order, within tolerance."""
        if self.device.type == "cuda":
            return is_near(one, other, allowed=self.allowed(other))
        return torch.equal(one.nan_to_num(), other.nan_to_num())

    def allowed(self, output: torch.Tensor, error: torch.Tensor | None = None) -> Allowed:
        """Returns the tolerance of an answer; without `error`, eager's own is unknown."""
        error = output.new_zeros(0) if error is None else error
        return Allowed.of(output, error, precision=self.rounding)

    def state(self) -> Iterable[torch.Tensor]:
        """Parameters and buffers of the model."""
        return self.model.state_dict().values()

    def parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Parameters that can be changed a little, with their names."""
        for name, each in self.model.named_parameters():
            if each.is_floating_point() and each.numel():
                yield name, each

    def num_bytes(self, inputs: list[Any], outputs: Outputs) -> int:
        """Bytes that a judge shares with its children for one input set."""
        errors = sum(4 * one.numel() for one in outputs)
        return sum(one.nbytes for one in [*leaves(inputs), *outputs]) + errors

    def _placed(self, value: torch.Tensor) -> torch.Tensor:
        if self.precision != "fp32" and value.is_floating_point():
            return value.to(self.device, DTYPES[self.precision])
        return value.to(self.device)


def _constructed(request: dict[str, Any]) -> tuple[types.ModuleType, Any, Any]:
    """The module of a problem, the arguments of its constructor, and its model."""
    module = types.ModuleType("problem")
    run_source(request["source"], module, file=FILE)
    init = constructor_arguments(module, request["entry_point"])
    Describer().tree(init)
    return module, init, construct(getattr(module, request["entry_point"]), init)
