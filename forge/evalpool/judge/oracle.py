"""Runs references (third-party code too) in a sandbox of its own; no candidate ever enters it.

Forked by the zygote, one a draw of a problem: seeds from the OS, parameters moved away from their
defaults, inputs of several distributions, eager outputs, and the error of eager against float64;
then writes all of it into memory that the judge owns.

    judge ── PROBLEM ──▶ compute ── LAYOUT | FAILED ──▶ judge ── FILL (+ memory) ──▶ ── DONE ──▶
"""

from __future__ import annotations

import mmap
import os
import time
import types
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from forge.evalpool.judge import compare, frames, initial, witness
from forge.evalpool.judge.called import Unjudgeable, call, dtype_name
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.own_error import count_work, errors_of, largest_error
from forge.evalpool.judge.shm import TensorSpec, offsets

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from forge.evalpool.judge.opcount import OpCounter

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
finite or fails, or whose own error exceeds the tolerance, falls back to `given`."""
HUGE, HUGE_SCALE = "huge", 2.0**17
"""One more distribution, for products in TF32: a candidate that computes in fp16, as exact on
ordinary values and twice as fast, overflows."""
RECURRENT = ("rnn", "lstm", "gru")
"""In names of operations whose matrix products have no FLOPs by `opcount.py`: cuDNN's layers."""
NEGLIGIBLE_ERROR = 0.02
"""In tolerances: an own error below it is not sent. It would cost a third of a GPU's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a problem is to be computed."""

    precision: str
    device: str
    """`cpu` or `cuda`."""
    is_tf32: bool
    """Whether there are fp32 matrix products, on a GPU, that may use TF32."""
    max_bytes: int
    """Of all sets together: fewer sets are made where one is large, but two."""
    is_plain: bool
    """Nothing but inputs as the problem gives them: any others ended an oracle, as a failed
    assertion on a GPU does."""


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
        is_tf32=request["tf32"] and request["device"] != "cpu" and request["precision"] == "fp32",
        max_bytes=request["max_bytes"],
        is_plain=request["plain"],
    )
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = terms.is_tf32
    if terms.device != "cpu":
        torch.cuda.set_per_process_memory_fraction(request["memory_share"])
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
        counted = count_work(model, _given(module, terms))
        terms = replace(terms, is_tf32=terms.is_tf32 and has_products(counted))
        sets = _make_sets(module, model, num_sets=request["num_sets"], terms=terms)
        facts = {
            "order": order,
            "work": None if counted is None else counted.work,
            "flops": 0 if counted is None else counted.flops,
            "form": sets[0].form,
            # Something that a reference may fail at was left out: with more memory it may not be.
            "is_short": terms.device != "cpu" and torch.cuda.memory_stats().get("num_ooms", 0) > 0,
        }
    layout, tensors = _describe(init, state=state, sets=sets)
    return {**layout, **facts}, tensors


def has_products(counted: OpCounter | None) -> bool:
    """Whether a call has what TF32 may make inexact."""
    if counted is None:
        return False
    return counted.flops > 0 or any(part in name for name in counted.work for part in RECURRENT)


def _make_sets(module: Any, model: Any, *, num_sets: int, terms: Terms) -> list[InputSet]:
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
    """Whether the judge would take these outputs for those."""
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
    layout["tensors"] = [[dtype_name(tensor), list(tensor.shape)] for tensor in describer.tensors]
    return layout, describer.tensors


def _given(module: Any, terms: Terms) -> list[Any]:
    """Inputs as the problem gives them."""
    return [_cast(_placed(value, terms), terms.precision) for value in module.get_inputs()]


def _make_set(module: Any, model: Any, *, variant: str, terms: Terms) -> InputSet:
    """Inputs of one distribution; of the given one where the reference does not bear the other."""
    given = _given(module, terms)
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
    except torch.OutOfMemoryError:
        raise  # it is drawn again with more
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
    except torch.OutOfMemoryError:
        raise
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


def _fill(frame: frames.Frame, tensors: list[torch.Tensor]) -> None:
    specs = [TensorSpec(dtype_name(tensor), tuple(tensor.shape)) for tensor in tensors]
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
