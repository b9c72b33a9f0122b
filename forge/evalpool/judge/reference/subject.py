"""One problem's reference: loaded, placed on a device, run on copies of its inputs.

Used by examiners and baselines. Does to it what an oracle does, and nothing else.
"""

from __future__ import annotations

import os
import types
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.numbers import parameters
from forge.evalpool.judge.numbers.called import Unjudgeable, call, held_tensors, on_device
from forge.evalpool.judge.numbers.given import cast, constructor_arguments, draw_inputs, run_source
from forge.evalpool.judge.numbers.opcount import count_work
from forge.evalpool.judge.reference.construct import construct
from forge.evalpool.judge.reference.oracle import Describer, rounded_terms, terms_of
from forge.evalpool.judge.reference.stand_ins import replace_hub
from forge.evalpool.judge.wide.sets import Draws

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.numbers.given import Terms

Outputs = list[torch.Tensor]
FILE = "problem.py"
"""Name of the problem's source in tracebacks."""


class Subject:
    """A problem's module and model, made by `load`. Each method may raise any error of the
    reference."""

    def __init__(
        self,
        module: Any,
        model: torch.nn.Module,
        *,
        terms: Terms,
        source: str,
        construct: Callable[[], torch.nn.Module],
    ) -> None:
        self.module, self.model = module, model
        self._terms, self._source, self._construct = terms, source, construct

    @classmethod
    def load(cls, request: dict[str, Any]) -> Subject:
        """The module, and its model with parameters moved as for a candidate."""
        torch.backends.cuda.matmul.allow_tf32 = bool(request["tf32_products"])
        torch.backends.cudnn.allow_tf32 = bool(request["tf32"])
        replace_hub(request["source"])
        torch.manual_seed(int.from_bytes(os.urandom(8)) >> 1)
        terms = terms_of(request)
        module = types.ModuleType("problem")

        def load() -> Any:
            run_source(request["source"], module, file=FILE)
            init = constructor_arguments(module, request["entry_point"])
            Describer().tree(init)
            return init

        init = on_device(terms.device, load)
        entry = getattr(module, request["entry_point"])

        def made() -> Any:
            model = on_device(terms.device, lambda: construct(entry, init))
            if not isinstance(model, torch.nn.Module):
                raise Unjudgeable(f"the reference is a {type(model).__name__}, not a Module")
            return cast(model.to(terms.device), terms.precision)

        model = made()
        parameters.move(model)
        return cls(module, model, terms=terms, source=request["source"], construct=made)

    def again(self) -> Any:
        """Another model of the same constructor, with the parameters, buffers and other tensors of
        this one: all that an answer gets."""
        other = self._construct()
        other.load_state_dict(self.model.state_dict())
        held = {one.name: one.tensor for one in held_tensors(self.model)}
        for one in held_tensors(other):
            if one.name in held:
                one.replace(held[one.name])
        return other

    def draw(self) -> list[Any]:
        """Fresh inputs, in the problem's precision."""
        return draw_inputs(self.module, self._terms)

    def draws(self) -> Draws:
        """The draws of an oracle."""
        counted = count_work(self.model, self.draw())
        return Draws(
            self.module,
            self.model,
            terms=rounded_terms(self._terms, counted),
            counted=counted,
            source=self._source,
            construct=self._construct,
        )

    def run(self, inputs: list[Any], model: Any = None) -> Outputs:
        """On copies, since a reference may work in place and keep statistics."""
        outputs = call(self.model if model is None else model, inputs).outputs
        if self._terms.device == "cuda":
            torch.cuda.synchronize()
        return outputs
