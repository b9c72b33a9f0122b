"""One problem's reference: loaded, constructed and placed on a device, and what describes it.

Used by oracles, examiners and baselines, which do the same to it.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, replace
from typing import Any

import torch

from forge.evalpool.judge.channel.nesting import Keywords
from forge.evalpool.judge.numbers import called as calls
from forge.evalpool.judge.numbers import given
from forge.evalpool.judge.numbers.opcount import OpCounter, count_work, has_products, rounding_of
from forge.evalpool.judge.reference import construct
from forge.evalpool.judge.wide.sets import Draws

Tree = list[Any]
Outputs = list[torch.Tensor]
FILE = "problem.py"
AS_TF32 = "fp16"
"""The precision with as many bits as TF32."""
FIRST_SEED = torch.initial_seed()
"""Torch's default: a candidate, too, can draw the constants that a source draws at import."""


class Describer:
    """Turns values into a JSON tree, gathering the tensors on the way."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> int:
        self.tensors.append(tensor.detach().contiguous())
        return len(self.tensors) - 1

    def tree(self, value: Any) -> Tree:
        """A value as lists with tags; tensors by their numbers. Raises Unjudgeable."""
        if isinstance(value, torch.Tensor):
            order = calls.memory_order(value)
            if order is None:
                return ["tensor", self.add(value)]
            back = sorted(range(len(order)), key=order.__getitem__)
            return ["permuted", [["tensor", self.add(value.permute(order))], back]]
        if isinstance(value, list | tuple):
            return [
                "list" if isinstance(value, list) else "tuple",
                [self.tree(item) for item in value],
            ]
        if isinstance(value, dict):
            kind = "keywords" if isinstance(value, Keywords) else "dict"
            return [kind, [[str(key), self.tree(item)] for key, item in value.items()]]
        if isinstance(value, torch.dtype):
            return ["dtype", str(value).removeprefix("torch.")]
        if (fields := construct.config_fields(value)) is not None:
            return ["config", fields]
        if value is None or isinstance(value, bool | int | float | str):
            return ["value", value]
        raise calls.Unjudgeable(
            f"an argument of type {type(value).__name__} cannot be handed to a candidate"
        )


def terms_of(request: dict[str, Any]) -> given.Terms:
    is_of_card = request["device"] != "cpu" or "small" in request
    return given.Terms(
        precision=request["precision"],
        device=request["device"],
        is_tf32=request["tf32"] and is_of_card and request["precision"] == "fp32",
        max_bytes=request["max_bytes"],
        is_plain=request["plain"],
    )


def rounded_terms(terms: given.Terms, counted: OpCounter | None) -> given.Terms:
    """Terms with what the work of a call says: whether TF32 matters, and the coarsest precision
    that the reference rounds to."""
    is_tf32 = terms.is_tf32 and has_products(counted)
    rounding = rounding_of(counted, terms.precision)
    if is_tf32 and rounding == "fp32":
        rounding = AS_TF32
    return replace(terms, is_tf32=is_tf32, rounding=rounding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A problem's model in its precision, and what it was constructed from. Made by `load`. Each
    method may raise any error of the reference."""

    module: types.ModuleType
    init: given.Arguments
    model: Any
    terms: given.Terms
    source: str
    entry_point: str
    order: list[str]
    """Names of the parameters in the order in which they were made."""
    drawn: dict[str, str] | None
    """For another protocol the digests of what the constructor draws."""

    @classmethod
    def load(cls, request: dict[str, Any], terms: given.Terms) -> Subject:
        """The module, and its model with parameters as the constructor makes them."""
        construct.replace_hub(request["source"])
        torch.manual_seed(FIRST_SEED)
        return calls.on_device(terms.device, lambda: cls._constructed(request, terms))

    @classmethod
    def _constructed(cls, request: dict[str, Any], terms: given.Terms) -> Subject:
        module = types.ModuleType("problem")
        given.run_source(request["source"], module, file=FILE)
        calls.seed_everything(calls.seeds.randbytes(calls.SEED_BYTES))
        init = given.placed(given.constructor_arguments(module, request["entry_point"]), terms)
        made: list[torch.Tensor] = []
        entry, drawn = getattr(module, request["entry_point"]), None
        with construct.parameters_made(made.append):
            if terms.is_plain:
                model, origins = construct.construct_noting(entry, init)
                drawn = origins.by_name(model)
            else:
                model = construct.construct(entry, init)
            if not isinstance(model, torch.nn.Module):
                raise calls.Unjudgeable(f"the reference is a {type(model).__name__}, not a Module")
            model = model.to(terms.device)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        return cls(
            module=module,
            init=init,
            model=given.cast(model, terms.precision),
            terms=terms,
            source=request["source"],
            entry_point=request["entry_point"],
            order=[names[id(parameter)] for parameter in made if id(parameter) in names],
            drawn=drawn,
        )

    def another(self) -> Any:
        entry, device = getattr(self.module, self.entry_point), self.terms.device
        return calls.on_device(device, lambda: construct.construct(entry, self.init).to(device))

    def again(self) -> Any:
        """Another model with all that an answer gets: parameters, buffers, other tensors."""
        other = given.cast(self.another(), self.terms.precision)
        other.load_state_dict(self.model.state_dict())
        held = {one.name: one.tensor for one in calls.held_tensors(self.model)}
        for one in calls.held_tensors(other):
            if one.name in held:
                one.replace(held[one.name])
        return other

    def held(self, *, is_sketch: bool = False) -> dict[str, torch.Tensor]:
        """Tensors that the constructor draws and no `state_dict` has, by name."""
        saved = self.model.state_dict()
        found = construct.drawn_tensors(self.model, self.another, is_sketch=is_sketch)
        return {n: one.to(self.terms.device) for n, one in found.items() if n not in saved}

    def draw(self) -> list[Any]:
        return given.draw_inputs(self.module, self.terms)

    def counted(self) -> OpCounter | None:
        """Operations of one call; None if unknown."""
        return count_work(self.model, self.draw())

    def draws(self, counted: OpCounter | None, **terms: Any) -> Draws:
        """Input sets with the outputs that are due, on further terms of `Draws`."""
        return Draws(
            self.module,
            self.model,
            terms=rounded_terms(self.terms, counted),
            counted=counted,
            source=self.source,
            construct=self.another,
            **terms,
        )

    def run(self, inputs: list[Any], model: Any = None) -> Outputs:
        """On copies, since a reference may work in place and keep statistics."""
        outputs = calls.call(self.model if model is None else model, inputs).outputs
        if self.terms.device == "cuda":
            torch.cuda.synchronize()
        return outputs
