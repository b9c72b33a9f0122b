"""Errors of eager itself against float64: an honest kernel may lose as much.

Called by the oracle, element by element of each output (`compare.py` says how it widens the
tolerance). Of matrix products where TF32 is allowed, the loss is that of operands cut to it,
whatever cuBLAS did with them: a candidate's `tl.dot` cuts them at any size.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from forge.evalpool.judge.numbers import compare
from forge.evalpool.judge.numbers.called import call, dtype_name, leaves
from forge.evalpool.judge.opcount import OpCounter

DROPPED_BITS = 13
"""Bits of fp32's mantissa that TF32 lacks: it keeps ten."""
TF32_SLACK = 1.5
"""Error allowed to a product in TF32, over the error of truncated operands. bf16 loses twice as much."""
RECURRENT = ("rnn", "lstm", "gru")
"""In names of operations whose matrix products have no FLOPs by `opcount.py`: cuDNN's layers."""


def errors_of(
    model: Any, inputs: list[Any], outputs: list[torch.Tensor], *, changed: list[int], is_tf32: bool
) -> list[torch.Tensor]:
    """|eager - float64| by output, [shape] float32; empty where it is unknown."""
    exact = _run_exact(model, inputs, changed=changed)
    errors = [_error(output, exact, number) for number, output in enumerate(outputs)]
    if not is_tf32:
        return errors
    rounded_model, rounded_inputs = _rounded_operands(model, inputs)
    rounded = _run_exact(rounded_model, rounded_inputs, changed=changed)
    lost = [_error(output, rounded, number) for number, output in enumerate(exact or [])]
    if not lost:
        return errors
    return [_largest(*each) for each in zip(errors, lost, outputs, strict=False)]


def _largest(error: torch.Tensor, lost: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """The larger of both, everywhere, in proportion to rms + |output|: another kernel loses as much, but at
    other elements; and an epilogue that grows what is large grows its error too."""
    if not error.numel() or not lost.numel():
        return error
    scale = _scale(output)
    allowed = (lost / scale).amax() * (TF32_SLACK / compare.ERROR_FACTOR)
    return (torch.maximum((error / scale).amax(), allowed) * scale).float()


def count_work(model: Any, inputs: list[Any]) -> OpCounter | None:
    """Work of torch in one call, by operation; None where it cannot be counted."""
    model, inputs = copy.deepcopy(model), copy.deepcopy(inputs)
    try:
        with OpCounter() as counter:
            model(*inputs)
    except Exception:  # it ran before: some torch code refuses to run under a mode
        return None
    return counter


def has_products(counted: OpCounter | None) -> bool:
    """True if a call has products that TF32 may make inexact."""
    if counted is None:
        return False
    return counted.flops > 0 or any(part in name for name in counted.work for part in RECURRENT)


def _rounded_operands(model: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
    model, inputs = copy.deepcopy(model), copy.deepcopy(inputs)
    for tensor in [*leaves(inputs), *model.parameters(), *model.buffers()]:
        if tensor.dtype is torch.float32 and tensor.numel():
            tensor.copy_(_to_tf32(tensor.contiguous()))
    return model, inputs


def _to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """[shape] cut to ten bits of mantissa, as tensor cores read fp32: worse than rounding, since on
    values of one sign it adds up."""
    return (tensor.view(torch.int32) & -(1 << DROPPED_BITS)).view(torch.float32)


def _run_exact(model: Any, inputs: list[Any], *, changed: list[int]) -> list[torch.Tensor] | None:
    try:
        doubled = [_to_double(value) for value in copy.deepcopy(inputs)]
        return call(copy.deepcopy(model).double(), doubled).results(changed)
    except Exception:  # a reference may insist on its dtype: then nothing is added to the tolerance
        return None  # the same where the GPU has no room for it


def _error(output: torch.Tensor, exact: list[torch.Tensor] | None, number: int) -> torch.Tensor:
    if exact is None or number >= len(exact) or not output.is_floating_point():
        return torch.zeros(0, dtype=torch.float32)
    if exact[number].shape != output.shape:
        return torch.zeros(0, dtype=torch.float32)
    error = (output.double() - exact[number].double()).abs()
    return torch.nan_to_num(error, nan=0.0, posinf=0.0, neginf=0.0).float()


def largest_error(
    outputs: list[torch.Tensor], errors: list[torch.Tensor], *, precision: str
) -> float:
    """The largest of them, in tolerances."""
    largest = 0.0
    for output, error in zip(outputs, errors, strict=True):
        if error.numel():
            allowed = compare.tolerance(dtype_name(output), precision) * _scale(output)
            largest = max(largest, float((error / allowed).max()))
    return largest


def _scale(output: torch.Tensor) -> torch.Tensor:
    """rms + |output|, float64, never 0: what errors and tolerances are in proportion to."""
    wide = output.double().nan_to_num(0.0, 0.0, 0.0).abs()
    return (wide + wide.square().mean().sqrt()).clamp_min(torch.finfo(torch.float32).tiny)


def _to_double(value: Any) -> Any:
    return (
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )
