"""The input sets of one draw: several distributions, what eager makes of each and what it loses.

Called by the oracle. A set whose inputs are not as the problem gives them stays only where the
reference bears it: it neither fails nor overflows, and eager is within the tolerance of float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.numbers import compare, witness
from forge.evalpool.judge.numbers.called import Unjudgeable, call, dtype_name
from forge.evalpool.judge.numbers.own_error import errors_of, largest_error

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MAX_OWN_ERROR = 10.0
"""In tolerances: what eager may be off by on the inputs as given. It is added to what a candidate
may be off by, four times; beyond this a wrong answer would pass for the reference's own noise."""
MAX_TF32_ERROR = 100.0
"""The same where TF32 is allowed: it loses about 1e-3 of the output's rms."""
NEGLIGIBLE_ERROR = 0.02
"""In tolerances: an own error below it is not sent. It would cost a third of a GPU's memory."""

VARIANTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "given": lambda x: x,
    "centred": lambda x: (x - x.mean()) * 3 + 0.5,
    "shifted": lambda x: x + 1.5,
    "wide": lambda x: x * 10,
}
"""Distributions of floating inputs, in the order of the input sets. A set whose reference is not
finite or fails, or whose own error exceeds the tolerance, falls back to `given`."""
HUGE, HUGE_SCALE = "huge", 2.0**17
"""One more distribution, for products in TF32: a candidate that computes in fp16, as exact on
ordinary values and twice as fast, overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a problem is to be computed."""

    precision: str
    device: str
    """`cpu` or `cuda`."""
    is_tf32: bool
    """True if there are fp32 matrix products, on a GPU, that may use TF32."""
    max_bytes: int
    """Limit for all sets together: fewer sets are made where one is large, but two."""
    is_plain: bool
    """Nothing but inputs as the problem gives them: any others ended an oracle, as a failed
    assertion on a GPU does."""


@dataclass(slots=True, kw_only=True)
class InputSet:
    inputs: list[Any]
    outputs: list[torch.Tensor]
    """Outputs of the reference, then the inputs that it changes, as it leaves them."""
    errors: list[torch.Tensor]
    variant: str
    changed: list[int]
    """Which those inputs are, by position among the tensors of the inputs."""
    form: str
    """`tensor`, or `list` for several outputs."""

    @property
    def num_returned(self) -> int:
        return len(self.outputs) - len(self.changed)

    def changes(self) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
        """(input, as the reference leaves it, eager's error) of each input that it changes."""
        count = self.num_returned
        return list(zip(self.changed, self.outputs[count:], self.errors[count:], strict=True))

    def num_bytes(self) -> int:
        tensors = [one for one in self.inputs if isinstance(one, torch.Tensor)]
        return sum(one.nbytes for one in [*tensors, *self.outputs, *self.errors])


def make_sets(module: Any, model: Any, *, num_sets: int, terms: Terms) -> list[InputSet]:
    variants = list(VARIANTS)
    if terms.is_tf32:
        variants.insert(1, HUGE)
        num_sets += 1
    if terms.is_plain:
        variants = variants[:1]
    sets: list[InputSet] = []
    num_bytes = 0
    search = witness.Search(
        lambda inputs: _results(model, inputs),
        agree=lambda one, other: _agrees(one, other, terms.precision),
    )
    for number in range(num_sets):
        made = _make_set(module, model, variant=variants[number % len(variants)], terms=terms)
        if sets and (planted := search.improve(made.inputs)) is not None:
            made = _tried(model, planted, variant=made.variant, terms=terms) or made
        if num_sets > 1 and not terms.is_plain:
            search.note(made.inputs)
        sets.append(made)
        num_bytes += made.num_bytes()
        if len(sets) >= 2 and num_bytes + made.num_bytes() > terms.max_bytes:
            break
    return sets


def _agrees(one: list[torch.Tensor], other: list[torch.Tensor], precision: str) -> bool:
    """True if the judge would accept these outputs for those."""
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape:
            return False
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return False
        elif a.numel():
            allowed = compare.tolerance(dtype_name(a), precision) * (
                a.double().square().mean().sqrt() + a.double().abs()
            )
            if bool(((a.double() - b.double()).abs() > allowed).any()):
                return False
    return True


def draw_inputs(module: Any, terms: Terms) -> list[Any]:
    """Inputs as the problem gives them."""
    return [cast(placed(value, terms), terms.precision) for value in module.get_inputs()]


def _make_set(module: Any, model: Any, *, variant: str, terms: Terms) -> InputSet:
    """Inputs of one distribution; of the given one where the reference does not bear the other."""
    given = draw_inputs(module, terms)
    limit = MAX_TF32_ERROR if terms.is_tf32 else MAX_OWN_ERROR
    if variant != "given":
        changed = [_vary(value, variant) for value in given]
        made = _tried(model, changed, variant=variant, terms=terms)
        if made is not None:
            return made
    made = _run(model, given, variant="given", terms=terms)
    _require_same(model, made, terms)
    if (error := _own_error(made, terms)) > limit:
        raise Unjudgeable(f"ill-conditioned: eager itself is {error:.0f} tolerances from float64")
    return _without_negligible(made, terms)


def _own_error(made: InputSet, terms: Terms) -> float:
    return largest_error(made.outputs, made.errors, precision=terms.precision)


def _tried(model: Any, inputs: list[Any], *, variant: str, terms: Terms) -> InputSet | None:
    """A set that need not be as the problem gives it, if the reference bears it."""
    limit = MAX_TF32_ERROR if terms.is_tf32 else 1.0
    try:
        made = _run(model, inputs, variant=variant, terms=terms)
    except Exception:  # outside of its domain a reference may raise anything
        return None
    if _is_finite(made) and _own_error(made, terms) <= limit:
        return _without_negligible(made, terms)
    return None


def _without_negligible(made: InputSet, terms: Terms) -> InputSet:
    if terms.device != "cpu" and _own_error(made, terms) < NEGLIGIBLE_ERROR:
        made.errors = [error.new_zeros(0) for error in made.errors]
    return made


def _vary(value: Any, variant: str) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        vary = VARIANTS.get(variant, lambda x: x * HUGE_SCALE)
        return vary(value.float()).to(value.dtype)
    return value


def _run(model: Any, inputs: list[Any], *, variant: str, terms: Terms) -> InputSet:
    """Eager outputs and their error against float64."""
    called = call(model, inputs)
    changed = called.changed()
    outputs, form = called.results(changed), called.form
    del called  # at full size inputs are gigabytes
    if not outputs:
        raise Unjudgeable("the reference returns nothing and changes no input")
    errors = errors_of(model, inputs, outputs, changed=changed, is_tf32=terms.is_tf32)
    return InputSet(
        inputs=inputs,
        outputs=outputs,
        errors=errors,
        variant=variant,
        changed=changed,
        form=form,
    )


def _results(model: Any, inputs: list[Any]) -> list[torch.Tensor] | None:
    """None where the reference does not bear these inputs."""
    try:
        return call(model, inputs).results()
    except Exception:
        return None


def _require_same(model: Any, made: InputSet, terms: Terms) -> None:
    """Raises Unjudgeable where a second run gives other outputs: dropout, random numbers. On a GPU
    the order of atomic additions may differ: there it must agree within the tolerance."""
    again = call(model, made.inputs).results(made.changed)
    for first, second in zip(made.outputs, again, strict=True):
        if first.is_floating_point() and first.numel() and not bool(torch.isfinite(first).any()):
            raise Unjudgeable("no value of the reference is finite: any answer would do")
        a, b = first.nan_to_num(), second.nan_to_num()
        if torch.equal(a, b):
            continue
        close = compare.tolerance(dtype_name(first), terms.precision)
        rms = a.double().square().mean().sqrt()
        if terms.device == "cpu" or float((a - b).abs().max()) > close * float(rms):
            raise Unjudgeable("nondeterministic: two runs on the same inputs differ")


def _is_finite(made: InputSet) -> bool:
    return all(bool(torch.isfinite(output).all()) for output in made.outputs)


def placed(value: Any, terms: Terms) -> Any:
    """The same with every tensor on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(terms.device)
    if isinstance(value, list | tuple):
        return type(value)(placed(item, terms) for item in value)
    return value


def cast(value: Any, precision: str) -> Any:
    """Model or input tensor to the problem's precision; fp32 leaves what the problem made."""
    if precision == "fp32":
        return value
    if isinstance(value, torch.nn.Module):
        return value.to(DTYPES[precision])
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(DTYPES[precision])
    return value
