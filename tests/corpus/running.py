"""Runs a pair of the corpus on a CPU: capture, policy, closed list, evaluation, comparison."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forge.evalpool.judge.capture.session import capture, flatten
from forge.evalpool.judge.capture.stage import Stage
from forge.evalpool.judge.compiler.backend import ParseFailed, check_ttir, open_target
from forge.evalpool.judge.compiler.text import Refused
from forge.evalpool.judge.execute.cpu import CpuExecutor
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Program
from forge.evalpool.judge.program.policy import facts_of, judge_policy
from forge.evalpool.judge.trial.programs import text_of
from tests.corpus.corpus import Pair

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # as in the zygote
TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 2e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.float8_e4m3fn: 0.15,
    torch.float8_e5m2: 0.3,
}
"""Largest error of an output, relative to its largest magnitude, by its type; others are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Outcome of one pair."""

    program: Program
    refusals: list[str]
    """Reasons of the policy `own` and of the closed list to refuse it."""
    errors: list[str]
    """A line for each output that is wrong."""
    faults: list[str]
    """Memory errors."""


@dataclass(slots=True)
class Request:
    """The judge's request, and the tensors that it numbers."""

    tensors: list[Any] = field(default_factory=list[Any])
    shapes: list[Any] = field(default_factory=list[Any])

    def tree(self, value: Any) -> list[Any]:
        """A value as the request's tree."""
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            self.shapes.append([str(value.dtype).removeprefix("torch."), list(value.shape), 0])
            return ["tensor", len(self.tensors) - 1]
        if isinstance(value, list | tuple):
            return [type(value).__name__, [self.tree(one) for one in value]]
        if isinstance(value, torch.dtype):
            return ["dtype", str(value).removeprefix("torch.")]
        return ["value", value]


def run(pair: Pair, folder: Path, *, seed: int = 0) -> Found:
    """Captures a candidate, judges its structure, evaluates it, compares outputs and inputs."""
    torch.manual_seed(seed)
    names: dict[str, Any] = {}
    exec(compile(pair.problem, pair.name, "exec"), names)
    arguments = names["get_init_inputs"]()
    model = names["Model"](*arguments)
    inputs = [
        one.contiguous() if isinstance(one, torch.Tensor) else one for one in names["get_inputs"]()
    ]
    state = dict(model.state_dict())
    request = Request()
    init = request.tree(list(arguments))
    body = {
        "init": init,
        "state": [[name, request.tree(value)[1]] for name, value in state.items()],
        "order": list(state),
        "inputs": request.tree(list(inputs)),
        "tensors": request.shapes,
    }
    answers = Answers(inputs, state)
    reference = captured(pair.problem, {**body, "entry_point": "Model"}, answers, folder)
    program = captured(pair.candidate, {**body, "entry_point": "ModelNew"}, answers, folder)
    given = copy.deepcopy(inputs)
    with torch.no_grad():
        wanted = list(flatten(model(*inputs)))
    executor = executor_of(program, given, state)
    executor.init()
    faults = [one.message for one in executor.forward().faults]
    errors = [
        f"output {place}: {words}"
        for place, (one, number) in enumerate(zip(wanted, program.outputs, strict=True))
        if (words := difference(one, tensor_of(executor, program, number), pair.tolerance))
    ]
    errors += [
        f"input {place}: {words}"
        for place, (one, other) in enumerate(zip(inputs, given, strict=True))
        if isinstance(one, torch.Tensor) and (words := difference(one, other, pair.tolerance))
    ]
    refusals = refused(program, reference)
    return Found(program=program, refusals=refusals, errors=errors, faults=faults)


def captured(code: str, body: dict[str, Any], answers: Answers, folder: Path) -> Program:
    """The program of a source, through its bytes. Raises CaptureFailed."""
    file = folder / f"{body['entry_point']}.py"
    try:
        return wire.loads(wire.dumps(capture(body, code, ask=answers, file=str(file))))
    finally:
        Stage.get().end()


def refused(program: Program, reference: Program) -> list[str]:
    """Reasons to refuse a program; none for an honest one."""
    uses = [text_of(kernel) for kernel in program.kernels]
    accesses = dict(enumerate(access for access, _ in uses))
    lookups = dict(enumerate(found for _, found in uses))
    refusal = judge_policy(program, facts_of(reference), "own", accesses, lookups)
    found = [] if refusal is None else [str(refusal)]
    target = open_target(program.target)
    for kernel in program.kernels:
        try:
            check_ttir(kernel, target)
        except (Refused, ParseFailed) as error:
            found.append(f"{kernel.name}: {error}")
    return found


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers a capture's questions by running the prefix of the program."""

    inputs: list[Any]
    state: dict[str, Any]

    def __call__(self, program: Program) -> Any:
        executor = executor_of(program, copy.deepcopy(self.inputs), self.state)
        executor.init()
        executor.forward()
        return [executor.tensors.torch(number).item() for number in program.outputs]


def executor_of(program: Program, inputs: list[Any], state: dict[str, Any]) -> CpuExecutor:
    """An executor over the memory of these tensors."""
    tensors = [raw(one) for one in inputs if isinstance(one, torch.Tensor)]
    return CpuExecutor(program, tensors, {name: raw(one) for name, one in state.items()})


def raw(tensor: torch.Tensor) -> Any:
    """Bytes of a contiguous tensor, sharing its memory."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def tensor_of(executor: CpuExecutor, program: Program, number: int) -> torch.Tensor:
    """An output as a torch tensor."""
    one = program.tensors[number]
    array = executor.tensors.read(number)
    flat = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return flat.view(getattr(torch, one.dtype)).reshape(one.shape)


def difference(wanted: torch.Tensor, found: torch.Tensor, tolerance: float | None) -> str:
    """A word on what differs; empty if the tensors agree."""
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return f"{tuple(found.shape)} {found.dtype} for {tuple(wanted.shape)} {wanted.dtype}"
    allowed = TOLERANCES.get(wanted.dtype, 0.0) if tolerance is None else tolerance
    left, right = wanted.double(), found.double()
    same = (left == right) | (left.isnan() & right.isnan())
    scale = left[left.isfinite()].abs().max() if left.isfinite().any() else torch.tensor(1.0)
    error = torch.where(same, 0.0, (left - right).abs()) / scale.clamp(min=1e-30)
    worst = float(error.nan_to_num(nan=float("inf")).max()) if error.numel() else 0.0
    return "" if worst <= allowed else f"error {worst:.3g}, {allowed:.3g} allowed"
