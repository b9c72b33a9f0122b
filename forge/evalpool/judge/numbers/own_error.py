"""Errors of eager itself against float64: an honest kernel may lose as much.

Called by the oracle, for each slab of each output (`tolerance.py` says how they widen the
tolerance). Two estimates, the larger counts: eager against the reference in float64, and the
reference in float64 against itself on inputs moved by half of their last bit, which another order
of operations may cost. Of matrix products where TF32 is allowed, the loss is that of operands cut
to it, whatever cuBLAS did with them: a candidate's `tl.dot` cuts them at any size.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from forge.evalpool.judge.numbers.called import call, dtype_name, is_categorical, leaves
from forge.evalpool.judge.numbers.slabs import Block, largest_by_slab, root_mean_squares
from forge.evalpool.judge.numbers.tolerance import ERROR_FACTOR, floor_of, tolerance
from forge.evalpool.judge.opcount import OpCounter

DROPPED_BITS = 13
"""Bits of fp32's mantissa that TF32 lacks: it keeps ten."""
TF32_SLACK = 1.5
"""Error allowed to a product in TF32, over the error of truncated operands. bf16 loses more."""
PRESCALE = 1.4426950408889634
"""Operands are cut as a kernel cuts them that scales them first (attention: by log2 e): operands
that TF32 keeps exactly lose then, too."""
COVERED = 0.1
"""Own errors below this share of tol · |ref|, four times, are no news: every slab would take over
the rounding of its largest element."""
MAX_NUDGED_ERROR = 10.0
"""In tolerances. What moves more under the last bit of its inputs jumps there (rounding,
comparisons) instead of losing precision."""
RECURRENT = ("rnn", "lstm", "gru")
"""In names of operations whose matrix products have no FLOPs by `opcount.py`: cuDNN's layers."""

Outputs = list[torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnErrors:
    """Errors of one call, by output."""

    packed: Outputs
    """[slabs] float32 each, as `Slabs.pack` gives them; empty where unknown."""
    largest: float
    """The largest of them, in tolerances of its element."""


def errors_of(
    model: Any,
    inputs: list[Any],
    outputs: Outputs,
    *,
    changed: list[int],
    is_tf32: bool,
    precision: str = "fp32",
) -> OwnErrors:
    """The errors of eager's `outputs` on `inputs`: outputs, then the inputs numbered `changed`."""
    exact = _run_exact(model, inputs, changed=changed)
    nudged = _run_exact(model, [_nudged(one) for one in inputs], changed=changed) if exact else None
    rounded = _run_exact(*_rounded_operands(model, inputs), changed=changed) if is_tf32 else None
    packed: Outputs = []
    largest = 0.0
    for number, output in enumerate(outputs):
        one = _at(exact, number, output)
        if one is None:
            packed.append(torch.zeros(0, dtype=torch.float32))
            continue
        measure = _Measure(output, precision)
        errors = [(output.double() - one).abs()]
        other = _at(nudged, number, output)
        if other is not None:
            moved = (other - one).abs()
            if measure.largest(moved) <= MAX_NUDGED_ERROR:
                errors.append(moved)
        error = torch.stack(errors).amax(0) if len(errors) > 1 else errors[0]
        lost = _at(rounded, number, output)
        if lost is not None:
            error = measure.at_least(error, lost=(lost - one).abs())
        largest = max(largest, measure.largest(error))
        packed.append(measure.packed(error))
    return OwnErrors(packed=packed, largest=largest)


class _Measure:
    """One output, and errors in proportion to scale + |output|."""

    def __init__(self, output: torch.Tensor, precision: str) -> None:
        self._size = output.double().nan_to_num(0.0, 0.0, 0.0).abs()
        floor = floor_of(dtype_name(output), precision)
        self._scales = root_mean_squares(output, floor=floor)
        self._close = tolerance(dtype_name(output), precision)

    @property
    def _whole(self) -> torch.Tensor:
        """[shape] scale + |output|, never 0."""
        scale = self._scales.at(tuple(slice(0, size) for size in self._size.shape))
        return (self._size + scale).clamp_min(torch.finfo(torch.float32).tiny)

    def largest(self, error: torch.Tensor) -> float:
        """The largest error, in tolerances."""
        if not error.numel():
            return 0.0
        ratio = error / (self._close * self._whole)
        return float(ratio.nan_to_num(0.0, 0.0, 0.0).max())

    def at_least(self, error: torch.Tensor, *, lost: torch.Tensor) -> torch.Tensor:
        """The larger of both, everywhere, in proportion to scale + |output|: another kernel loses
        as much, but at other elements; and an epilogue that grows what is large grows its error
        too."""
        if not error.numel():
            return error
        whole = self._whole
        allowed = (lost / whole).nan_to_num(0.0, 0.0, 0.0).amax() * (TF32_SLACK / ERROR_FACTOR)
        return torch.maximum((error / whole).nan_to_num(0.0, 0.0, 0.0).amax(), allowed) * whole

    def packed(self, error: torch.Tensor) -> torch.Tensor:
        clean = error.nan_to_num(0.0, 0.0, 0.0)
        clean = clean.where(clean * ERROR_FACTOR > COVERED * self._close * self._size, 0.0)

        def part(block: Block) -> torch.Tensor:
            return clean[block]

        return largest_by_slab(tuple(error.shape), part, device=error.device).pack()


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
    """In float64, cut to what TF32 keeps of them once they are scaled."""
    model, inputs = copy.deepcopy(model), copy.deepcopy(inputs)
    for tensor in [*leaves(inputs), *model.parameters(), *model.buffers()]:
        if tensor.dtype is torch.float32 and tensor.numel() and not is_categorical(tensor):
            tensor.copy_(_to_tf32(tensor.contiguous() * PRESCALE) / PRESCALE)
    return model, inputs


def _to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """[shape] cut to ten bits of mantissa, as tensor cores read fp32: worse than rounding, since on
    values of one sign it adds up."""
    return (tensor.view(torch.int32) & -(1 << DROPPED_BITS)).view(torch.float32)


def _nudged(value: Any) -> Any:
    """Continuous values moved by up to half of their last bit, in float64. Half precision stays:
    what is computed from it has finer steps."""
    is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    if not is_floating or value.itemsize < 4 or not value.numel() or is_categorical(value):
        return value
    noise = torch.rand_like(value, dtype=torch.float64).mul_(2).sub_(1)
    return noise.mul_(torch.finfo(value.dtype).eps / 2).add_(1).mul_(value)


def _run_exact(model: Any, inputs: list[Any], *, changed: list[int]) -> Outputs | None:
    try:
        doubled = [_to_double(value) for value in copy.deepcopy(inputs)]
        return call(copy.deepcopy(model).double(), doubled).results(changed)
    except Exception:  # a reference may insist on its dtype: then nothing is added to the tolerance
        return None  # the same where the GPU has no room for it


def _at(results: Outputs | None, number: int, output: torch.Tensor) -> torch.Tensor | None:
    """One result in float64; None where it says nothing of `output`."""
    if results is None or number >= len(results) or not output.is_floating_point():
        return None
    return results[number].double() if results[number].shape == output.shape else None


def _to_double(value: Any) -> Any:
    return (
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )
