"""Runs references (third-party code too) in a sandbox of its own; no candidate ever enters it.

Forked by the zygote, one a draw of a problem: seeds from the OS, parameters moved away from their
defaults, inputs of several distributions, eager outputs, and the error of eager against float64;
then writes all of it into memory that the judge owns.

    judge ── PROBLEM ──▶ compute ── LAYOUT | FAILED ──▶ judge ── FILL (+ memory) ──▶ ── DONE ──▶
"""

from __future__ import annotations

import copy
import mmap
import os
import time
import types
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from forge.evalpool.judge import compare, frames, initial, witness
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.opcount import OpCounter
from forge.evalpool.judge.shm import TensorSpec, offsets

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

Tree = list[Any]
IDLE_S = 1e9
"""An oracle waits for its judge for ever; the judge's end of the socket ends it."""
MAX_OWN_ERROR = 10.0
"""In tolerances: what eager may be off by on the inputs as given. It is added to what a candidate
may be off by, four times; beyond this a wrong answer would pass for the reference's own noise."""
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MAX_TF32_ERROR = 100.0
"""The same where TF32 is allowed: it loses about 1e-3 of the output's rms."""
PERTURBATION = 0.1
"""Standard deviation added to each floating parameter, relative to its own rms + 0.1."""

VARIANTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "given": lambda x: x,
    "centred": lambda x: (x - x.mean()) * 3 + 0.5,
    "shifted": lambda x: x + 1.5,
    "wide": lambda x: x * 10,
}
"""Distributions of floating inputs, in the order of the input sets. A set whose reference is not
finite, or whose own error exceeds the tolerance, falls back to `given`."""


NEGLIGIBLE_ERROR = 0.02
"""In tolerances: an own error below it is not sent. It would cost a third of a GPU's memory."""


class Unjudgeable(Exception):
    """The problem's reference cannot be run or described."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a problem is to be computed."""

    precision: str
    device: str
    """`cpu` or `cuda`."""
    is_tf32: bool
    """Whether fp32 matrix products may use TF32."""
    max_bytes: int
    """Of all sets together: fewer sets are made where one is large, but two."""


@dataclass(slots=True, kw_only=True)
class InputSet:
    inputs: list[Any]
    outputs: list[torch.Tensor]
    """What the reference returns, then the inputs that it changes, as it leaves them."""
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


class Describer:
    """Turns values into a JSON tree, gathering the tensors on the way."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> int:
        self.tensors.append(tensor.detach().contiguous())
        return len(self.tensors) - 1

    def tree(self, value: Any) -> Tree:
        if isinstance(value, torch.Tensor):
            return ["tensor", self.add(value)]
        if isinstance(value, list | tuple):
            return [
                "list" if isinstance(value, list) else "tuple",
                [self.tree(item) for item in value],
            ]
        if isinstance(value, dict):
            return ["dict", [[str(key), self.tree(item)] for key, item in value.items()]]
        if isinstance(value, torch.dtype):
            return ["dtype", str(value).removeprefix("torch.")]
        if value is None or isinstance(value, bool | int | float | str):
            return ["value", value]
        raise Unjudgeable(
            f"an argument of type {type(value).__name__} cannot be handed to a candidate"
        )


def main(sock: socket.socket) -> None:
    """Answers the judge on `sock` for one problem."""
    deadline = time.monotonic() + IDLE_S
    request = frames.receive(sock, deadline=deadline, expected=(Kind.PROBLEM,)).body
    try:
        layout, tensors = _compute(request)
    except BaseException as error:  # a reference may raise anything; the judge is told
        body = {"type": type(error).__name__, "message": str(error)[:1000]}
        frames.send(sock, Kind.FAILED, body)
        return
    frames.send(sock, Kind.LAYOUT, layout)
    fill = frames.receive(sock, deadline=deadline, expected=(Kind.FILL,), takes_fds=True)
    _fill(fill, tensors)
    frames.send(sock, Kind.DONE, {})


def _compute(request: dict[str, Any]) -> tuple[dict[str, Any], list[torch.Tensor]]:
    terms = Terms(
        precision=request["precision"],
        device=request["device"],
        is_tf32=request["tf32"],
        max_bytes=request["max_bytes"],
    )
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = terms.is_tf32
    module = types.ModuleType("problem")
    # Tensors are made on the device: copying them there is most of KernelBench's time at full size.
    making = nullcontext() if terms.device == "cpu" else torch.device(terms.device)
    with torch.no_grad(), making:
        exec(compile(request["source"], "problem.py", "exec"), module.__dict__)
        torch.manual_seed(int.from_bytes(os.urandom(8)) >> 1)
        init = _placed(list(getattr(module, "get_init_inputs", list)()), terms)
        made: list[torch.Tensor] = []
        with initial.parameters_made(made.append):
            model = initial.construct(getattr(module, request["entry_point"]), init)
            model = model.to(terms.device)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        order = [names[id(parameter)] for parameter in made if id(parameter) in names]
        _perturb(model)
        _cast(model, terms.precision)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        sets = _make_sets(module, model, num_sets=request["num_sets"], terms=terms)
        counted = _count_work(model, sets[0].inputs)
        facts = {
            "order": order,
            "work": None if counted is None else counted.work,
            "flops": 0 if counted is None else counted.flops,
            "form": sets[0].form,
        }
    layout, tensors = _describe(init, state=state, sets=sets)
    return {**layout, **facts}, tensors


def _make_sets(module: Any, model: Any, *, num_sets: int, terms: Terms) -> list[InputSet]:
    variants = list(VARIANTS)
    sets: list[InputSet] = []
    num_bytes = 0
    search = witness.Search(
        lambda inputs: _call(model, inputs).results(),
        agree=lambda one, other: _agrees(one, other, terms.precision),
    )
    for number in range(num_sets):
        made = _make_set(module, model, variant=variants[number % len(variants)], terms=terms)
        if sets and (planted := search.improve(made.inputs)) is not None:
            made = _sound(_run(model, planted, variant=made.variant, terms=terms), terms) or made
        if num_sets > 1:
            search.note(made.inputs)
        sets.append(made)
        num_bytes += made.num_bytes()
        if len(sets) >= 2 and num_bytes + made.num_bytes() > terms.max_bytes:
            break
    return sets


def _agrees(one: list[torch.Tensor], other: list[torch.Tensor], precision: str) -> bool:
    """Whether the judge would take these outputs for those."""
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape:
            return False
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return False
        elif a.numel():
            allowed = compare.tolerance(_dtype(a), precision) * (
                a.float().square().mean().sqrt() + a.float().abs()
            )
            if bool(((a.float() - b.float()).abs() > allowed).any()):
                return False
    return True


def _count_work(model: Any, inputs: list[Any]) -> OpCounter | None:
    """What torch does in one call, by operation; None where that cannot be counted."""
    model, inputs = copy.deepcopy(model), copy.deepcopy(inputs)
    try:
        with OpCounter() as counter:
            model(*inputs)
    except Exception:  # it ran before: some torch code refuses to run under a mode
        return None
    return counter


def _placed(value: Any, terms: Terms) -> Any:
    """The same with every tensor on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(terms.device)
    if isinstance(value, list | tuple):
        return type(value)(_placed(item, terms) for item in value)
    return value


def _describe(
    init: list[Any], *, state: dict[str, torch.Tensor], sets: list[InputSet]
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    describer = Describer()
    layout = {
        "init": describer.tree(init),
        "state": [[name, describer.add(tensor)] for name, tensor in state.items()],
        "sets": [
            {
                "variant": one.variant,
                "inputs": describer.tree(one.inputs),
                "outputs": [describer.add(tensor) for tensor in one.outputs[: one.num_returned]],
                "errors": [describer.add(tensor) for tensor in one.errors[: one.num_returned]],
                "changed": [
                    [number, describer.add(output), describer.add(error)]
                    for number, output, error in one.changes()
                ],
            }
            for one in sets
        ],
    }
    layout["tensors"] = [[_dtype(tensor), list(tensor.shape)] for tensor in describer.tensors]
    return layout, describer.tensors


def _make_set(module: Any, model: Any, *, variant: str, terms: Terms) -> InputSet:
    """Inputs of one distribution; of the given one where the reference does not bear the other."""
    given = [_cast(_placed(value, terms), terms.precision) for value in module.get_inputs()]
    limit = _max_own_error(terms)
    if variant != "given":
        changed = [_vary(value, variant) for value in given]
        made = _sound(_run(model, changed, variant=variant, terms=terms), terms)
        if made is not None:
            return made
    made = _run(model, given, variant="given", terms=terms)
    _require_same(model, made, terms)
    if (error := _own_error(made, terms.precision)) > limit:
        raise Unjudgeable(f"ill-conditioned: eager itself is {error:.0f} tolerances from float64")
    return _without_negligible(made, terms)


def _max_own_error(terms: Terms) -> float:
    return MAX_TF32_ERROR if terms.is_tf32 and terms.device != "cpu" else MAX_OWN_ERROR


def _sound(made: InputSet, terms: Terms) -> InputSet | None:
    """A set that need not be as the problem gives it, if the reference bears it."""
    limit = _max_own_error(terms) / MAX_OWN_ERROR
    if _is_finite(made) and _own_error(made, terms.precision) <= limit:
        return _without_negligible(made, terms)
    return None


def _without_negligible(made: InputSet, terms: Terms) -> InputSet:
    if terms.device != "cpu" and _own_error(made, terms.precision) < NEGLIGIBLE_ERROR:
        made.errors = [error.new_zeros(0) for error in made.errors]
    return made


def _vary(value: Any, variant: str) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return VARIANTS[variant](value.float()).to(value.dtype)
    return value


@dataclass(slots=True, kw_only=True)
class Called:
    """One call of the reference, on copies: it may work in place."""

    outputs: list[torch.Tensor]
    before: list[torch.Tensor]
    after: list[torch.Tensor]
    """The tensors among the inputs."""
    form: str

    def changed(self) -> list[int]:
        pairs = enumerate(zip(self.before, self.after, strict=True))
        return [number for number, (old, new) in pairs if not _is_equal(old, new)]

    def results(self, changed: list[int] | None = None) -> list[torch.Tensor]:
        """The outputs, then the inputs that were changed."""
        numbers = self.changed() if changed is None else changed
        return [*self.outputs, *(self.after[number] for number in numbers)]


def _call(model: Any, inputs: list[Any]) -> Called:
    given = copy.deepcopy(inputs)
    result = copy.deepcopy(model)(*given)
    return Called(
        outputs=_flatten(result),
        before=_leaves(inputs),
        after=_leaves(given),
        form="tensor" if isinstance(result, torch.Tensor) else "list",
    )


def _run(model: Any, inputs: list[Any], *, variant: str, terms: Terms) -> InputSet:
    """Eager outputs and their error against float64."""
    called = _call(model, inputs)
    changed = called.changed()
    outputs, form = called.results(changed), called.form
    del called  # at full size inputs are gigabytes
    if not outputs:
        raise Unjudgeable("the reference returns nothing and changes no input")
    exact = _run_exact(model, inputs, changed=changed)
    errors = [_error(output, exact, number) for number, output in enumerate(outputs)]
    del exact
    if terms.device != "cpu" and terms.is_tf32 and _uses_tf32(model, inputs, outputs, changed):
        # Another kernel loses as much, but elsewhere: what counts is the size of the loss.
        errors = [error.amax().expand_as(error) if error.numel() else error for error in errors]
    return InputSet(
        inputs=inputs,
        outputs=outputs,
        errors=errors,
        variant=variant,
        changed=changed,
        form=form,
    )


def _uses_tf32(
    model: Any, inputs: list[Any], outputs: list[torch.Tensor], changed: list[int]
) -> bool:
    """Whether the reference has matrix products that TF32 changes."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    plain = _call(model, inputs).results(changed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    pairs = zip(plain, outputs, strict=True)
    return any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def _run_exact(model: Any, inputs: list[Any], *, changed: list[int]) -> list[torch.Tensor] | None:
    try:
        doubled = [_to_double(value) for value in copy.deepcopy(inputs)]
        return _call(copy.deepcopy(model).double(), doubled).results(changed)
    except Exception:  # a reference may insist on its dtype: then nothing is added to the tolerance
        return None  # the same where the GPU has no room for it


def _error(output: torch.Tensor, exact: list[torch.Tensor] | None, number: int) -> torch.Tensor:
    if exact is None or number >= len(exact) or not output.is_floating_point():
        return torch.zeros(0, dtype=torch.float32)
    if exact[number].shape != output.shape:
        return torch.zeros(0, dtype=torch.float32)
    error = (output.double() - exact[number].double()).abs()
    return torch.nan_to_num(error, nan=0.0, posinf=0.0, neginf=0.0).float()


def _require_same(model: Any, made: InputSet, terms: Terms) -> None:
    """Raises Unjudgeable where a second run gives other outputs: dropout, random numbers. On a GPU
    the order of atomic additions may differ: there it must agree within the tolerance."""
    again = _call(model, made.inputs).results(made.changed)
    for first, second in zip(made.outputs, again, strict=True):
        if first.is_floating_point() and first.numel() and not bool(torch.isfinite(first).any()):
            raise Unjudgeable("no value of the reference is finite: any answer would do")
        a, b = first.nan_to_num(), second.nan_to_num()
        if torch.equal(a, b):
            continue
        close = compare.tolerance(_dtype(first), terms.precision)
        rms = a.float().square().mean().sqrt()
        if terms.device == "cpu" or float((a - b).abs().max()) > close * float(rms):
            raise Unjudgeable("nondeterministic: two runs on the same inputs differ")


def _is_finite(made: InputSet) -> bool:
    return all(bool(torch.isfinite(output).all()) for output in made.outputs)


def _own_error(made: InputSet, precision: str) -> float:
    """The largest error of eager against float64, in tolerances."""
    largest = 0.0
    for output, error in zip(made.outputs, made.errors, strict=True):
        if error.numel():
            wide = output.double().nan_to_num(0.0, 0.0, 0.0)
            rms = wide.square().mean().sqrt()
            allowed = compare.tolerance(_dtype(output), precision) * (rms + wide.abs())
            largest = max(largest, float((error / allowed).nan_to_num(0.0).max()))
    return largest


def _perturb(model: Any) -> None:
    """Moves floating parameters and running statistics off their defaults, so that a constant
    cannot stand for them."""
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.numel():
            scale = PERTURBATION * (parameter.float().square().mean().sqrt() + 0.1)
            parameter.add_(torch.randn_like(parameter) * scale)
    for module in model.modules():
        if isinstance(module, _NormBase) and module.running_mean is not None:
            module.running_mean.add_(torch.randn_like(module.running_mean) * PERTURBATION)
            assert module.running_var is not None
            module.running_var.mul_((torch.randn_like(module.running_var) * PERTURBATION).exp())


def _cast(value: Any, precision: str) -> Any:
    """Model or input tensor to the problem's precision; fp32 leaves what the problem made."""
    if precision == "fp32":
        return value
    if isinstance(value, torch.nn.Module):
        return value.to(DTYPES[precision])
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(DTYPES[precision])
    return value


def _to_double(value: Any) -> Any:
    return (
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )


def _leaves(value: Any) -> list[torch.Tensor]:
    """Its tensors, in the order of `Describer.tree`."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    return [leaf for item in items for leaf in _leaves(item)] if _has_items(value) else []


def _has_items(value: Any) -> bool:
    return isinstance(value, list | tuple | dict)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) or torch.equal(one.nan_to_num(), other.nan_to_num())


def _flatten(result: Any) -> list[torch.Tensor]:
    if result is None:
        return []
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [leaf for item in result for leaf in _flatten(item)]
    raise Unjudgeable(f"the reference returns a {type(result).__name__}; tensors are judged")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _fill(frame: frames.Frame, tensors: list[torch.Tensor]) -> None:
    specs = [TensorSpec(_dtype(tensor), tuple(tensor.shape)) for tensor in tensors]
    starts, num_bytes = offsets(specs)
    fd = frame.fds[0]
    if "block_bytes" in frame.body:
        _fill_block(fd, frame.body["block_bytes"], tensors, starts)
        return
    memory = mmap.mmap(fd, num_bytes)
    os.close(fd)
    for tensor, spec, start in zip(tensors, specs, starts, strict=True):
        if spec.num_bytes:
            target = torch.frombuffer(
                memory, dtype=tensor.dtype, count=tensor.numel(), offset=start
            )
            target.copy_(tensor.flatten())


def _fill_block(fd: int, num_bytes: int, tensors: list[torch.Tensor], starts: list[int]) -> None:
    """The same into GPU memory of the judge's. What is written is let go of: there may be no room
    for both."""
    from forge.evalpool.judge import gpu_memory

    torch.cuda.empty_cache()
    memory = gpu_memory.open_block(fd, num_bytes).bytes()
    os.close(fd)
    for number, start in enumerate(starts):
        content = tensors[number].flatten().view(torch.uint8)
        memory[start : start + content.numel()].copy_(content)
    torch.cuda.synchronize()
