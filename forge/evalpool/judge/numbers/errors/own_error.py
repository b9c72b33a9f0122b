"""Errors of eager itself against float64: an honest kernel may lose as much.

Called by the oracle, for each slab of each output (`tolerance.py` says how they widen the
tolerance). Two estimates, the larger counts: eager against the reference in float64, and the
reference in float64 against itself on inputs moved by half of their last bit, which another order
of operations may cost. Of matrix products where TF32 is allowed, the loss is that of operands cut
to it, whatever cuBLAS did with them: a candidate's `tl.dot` cuts them at any size.
"""

from __future__ import annotations

import copy
import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from forge.evalpool.judge.numbers.blocks import THREADS, Block, blocks_of
from forge.evalpool.judge.numbers.called import (
    call,
    call_on,
    copied,
    dtype_name,
    is_categorical,
    leaves,
    replaced,
)
from forge.evalpool.judge.numbers.errors.exact import run_exact, to_double
from forge.evalpool.judge.numbers.errors.logits import RoundedTwice
from forge.evalpool.judge.numbers.errors.norms import RoundedNorms
from forge.evalpool.judge.numbers.finite import widened
from forge.evalpool.judge.numbers.opcount import OpCounter
from forge.evalpool.judge.numbers.slabs import (
    Scales,
    Slabs,
    largest_by_slab,
    scales_of,
    spread,
)
from forge.evalpool.judge.numbers.tolerance import (
    ERROR_FACTOR,
    TOLERANCE,
    floors_of,
    tolerance,
)

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
ROWS_DIVISOR = 8
"""Divides a batch for which float64 has no room, or takes too long."""
SLOW_S = 1.0
"""A convolution in float64 may take 3 s on a card where eager takes 0.2 s; each set of inputs has
three such calls, and a judge waits 20 s for all sets."""
RECURRENT = ("rnn", "lstm", "gru")
"""In names of operations whose matrix products have no FLOPs by `opcount.py`: cuDNN's layers."""

NOISE_LEAST, NOISE_A_WORD = torch.iinfo(torch.int16).min, 4
"""Least number of 16 bits, and how many of them a random number of 64 bits has."""
TINY = torch.finfo(torch.float32).tiny
Outputs = list[torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnErrors:
    """Errors of one call, by output."""

    packed: Outputs
    """[slabs] float32 each, as `Slabs.pack` gives them; empty where unknown."""
    largest: float
    """The largest of them, in tolerances of its element."""
    scales: list[Scales | None]
    """Scales of each output; None where unknown."""
    is_open: bool = False
    """True if integers differ from those in float64, or of rounded operands."""

    @classmethod
    def unknown(cls, outputs: Outputs) -> OwnErrors:
        """Makes the errors of a protocol that compares with eager alone: none is known."""
        packed = [torch.zeros(0, dtype=torch.float32) for _ in outputs]
        return cls(packed=packed, largest=0.0, scales=[None for _ in outputs])


def errors_of(
    model: Any,
    inputs: list[Any],
    outputs: Outputs,
    *,
    changed: list[int],
    is_tf32: bool,
    precision: str = "fp32",
    has_large_logits: bool = False,
    has_norms: bool = False,
    has_scaled_halves: bool = False,
) -> OwnErrors:
    """The errors of eager's `outputs` on `inputs`; where float64 has no room for a batch, or takes
    longer than SLOW_S on a card, those of some of its rows.

    Args:
        outputs: what eager returned, then the inputs numbered `changed`.
        has_large_logits: a softmax may have logits whose rounding exceeds the tolerance
            (errors/logits.py). Their errors do not count for `OwnErrors.largest`: inputs are to
            blame, not the reference.
        has_norms: a mean and a variance may be rounded (errors/norms.py); the same holds for them.
        has_scaled_halves: a kernel may round inputs in half precision anew (`has_attention`).
    """
    terms = {
        "is_tf32": is_tf32, "precision": precision, "has_large_logits": has_large_logits,
        "has_norms": has_norms, "has_scaled_halves": has_scaled_halves,
    }  # fmt: skip
    nudge = partial(_nudged, least_bytes=2 if has_scaled_halves else 4)
    try:
        started = time.monotonic()
        exact = run_exact(model, inputs, changed=changed, is_tf32=is_tf32)
        if _is_slow(started, outputs):
            found = _errors_of_rows(model, inputs, outputs, changed=changed, **terms)
            if any(one.numel() for one in found.packed):
                return found
        nudged = run_exact(model, inputs, changed=changed, widen=nudge) if exact else None
        rounded = (
            run_exact(*_rounded_operands(model, inputs), changed=changed, is_tf32=True)
            if is_tf32
            else None
        )
        twice = None
        if exact and (has_large_logits or has_norms):
            with (
                RoundedTwice() if has_large_logits else nullcontext(),
                RoundedNorms() if has_norms else nullcontext(),
            ):
                twice = run_exact(model, inputs, changed=changed)
    except torch.OutOfMemoryError:
        return _errors_of_rows(model, inputs, outputs, changed=changed, **terms)
    packed: Outputs = []
    scales: list[Scales | None] = []
    largest = 0.0
    for number, output in enumerate(outputs):
        one = _at(exact, number, output)
        if one is None or not output.numel():
            packed.append(torch.zeros(0, dtype=torch.float32))
            scales.append(None)
            continue
        measure = _Measure(output, one, precision, twice=_at(twice, number, output))
        found = measure.errors(_at(nudged, number, output), _at(rounded, number, output))
        largest = max(largest, found.largest)
        packed.append(found.packed)
        scales.append(measure.scales)
    is_open = any(_has_other_integers(one, outputs) for one in (exact, rounded))
    return OwnErrors(packed=packed, largest=largest, scales=scales, is_open=is_open)


def _has_other_integers(results: Outputs | None, outputs: Outputs) -> bool:
    """True if integers or bools are others; results of other types say nothing."""
    pairs = zip(results or [], outputs, strict=False)
    return any(
        one.dtype is output.dtype and (one.shape != output.shape or not torch.equal(one, output))
        for one, output in pairs
        if not (output.is_floating_point() or output.is_complex())
    )


def _is_slow(started: float, outputs: Outputs) -> bool:
    """Never on a CPU, where the load of the machine would decide on a tolerance."""
    if not any(one.is_cuda for one in outputs):
        return False
    torch.cuda.synchronize()
    return time.monotonic() - started > SLOW_S


def root_mean_square(tensor: torch.Tensor) -> float:
    """Root mean square of the finite elements; 0 where there is none."""
    tensor = widened(tensor)
    norm = float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
    if not math.isfinite(norm):
        finite = tensor.nan_to_num(0.0, 0.0, 0.0)
        norm = float(torch.linalg.vector_norm(finite, dtype=torch.float64))
    return norm / math.sqrt(max(1, tensor.numel()))


class _Measure:
    """Errors of one output, in blocks: beside the results it takes memory for one block."""

    def __init__(
        self,
        output: torch.Tensor,
        exact: torch.Tensor,
        precision: str,
        *,
        twice: torch.Tensor | None,
    ) -> None:
        """`twice`: the result with softmaxes and norms that are rounded as in a kernel."""
        shape = tuple(output.shape)
        floors = floors_of(dtype_name(output), precision, shape)
        self._output, self._exact, self._twice = widened(output), exact, twice
        self.scales = scales_of(self._output)
        self._least = self.scales.slabs(floors)
        self._is_positive = self._least.least() >= TINY
        self._close = tolerance(dtype_name(output), precision)

    def errors(self, nudged: torch.Tensor | None, rounded: torch.Tensor | None) -> _Errors:
        """All errors together. The result on nudged inputs counts unless it jumps; that of rounded
        operands everywhere in proportion to scale + |output|: another kernel loses as much, but at
        other elements; and an epilogue that grows what is large grows its error too."""
        found = self._walk(nudged)
        if found.moved > MAX_NUDGED_ERROR * self._close:
            nudged, found = None, self._walk(None)
        everywhere = 0.0
        if rounded is not None:
            lost = self._walk(rounded).moved
            everywhere = max(found.error, lost * TF32_SLACK / ERROR_FACTOR)
            found = self._walk(nudged, everywhere=everywhere)
        largest = max(found.error, everywhere) / self._close
        return _Errors(packed=found.news.pack(), largest=largest)

    def _walk(self, other: torch.Tensor | None, *, everywhere: float = 0.0) -> _Walk:
        """One pass over the results. All of its steps are done block by block, in several threads.

        Args:
            other: a second result whose distance from the exact one counts as an error, too.
            everywhere: least error of every element, relative to scale + |output|.
        """
        errors, moves = [0.0], [0.0]

        def news(block: Block) -> torch.Tensor | None:
            exact = self._exact[block]
            size = self._output[block].to(torch.float64, copy=True)
            lost = (size - exact).abs_()
            size.abs_()
            if not self.scales.is_finite:
                size.nan_to_num_(0.0, 0.0, 0.0)
            whole = size + self._least.at(block)
            if not self._is_positive:
                whole.clamp_min_(TINY)
            if other is not None:
                distance = (other[block] - exact).abs_()
                moves.append(_largest_ratio(distance, whole)[0])
                torch.maximum(lost, distance, out=lost)
            here, is_finite = _largest_ratio(lost, whole)
            errors.append(here)
            if self._twice is not None:
                torch.maximum(lost, (self._twice[block] - exact).abs_(), out=lost)
            if not is_finite or self._twice is not None:
                lost.nan_to_num_(0.0, 0.0, 0.0)
            if everywhere:
                return torch.maximum(lost, whole.mul_(everywhere), out=lost)
            covered = size.mul_(COVERED * self._close / ERROR_FACTOR)
            if float(torch.sub(lost, covered, out=whole).max()) <= 0:  # cheaper than a mask
                return None
            return lost.masked_fill_(lost <= covered, 0.0)

        shape = tuple(self._output.shape)
        slabs = largest_by_slab(shape, news, device=self._output.device)
        return _Walk(error=max(errors), moved=max(moves), news=slabs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Errors:
    """Errors of one output."""

    packed: torch.Tensor
    """The largest error of each slab, of what the tolerance does not cover anyway."""
    largest: float
    """The largest error, in tolerances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """Results of one pass over an output."""

    error: float
    """The largest error, relative to scale + |output|."""
    moved: float
    """The largest distance of the other result, in the same."""
    news: Slabs


def _largest_ratio(error: torch.Tensor, whole: torch.Tensor) -> tuple[float, bool]:
    """The largest finite ratio of two tensors, at least 0, and True if all are finite; `whole` is
    never 0."""
    ratio = error / whole
    largest = float(ratio.max())
    if math.isfinite(largest):
        return largest, True
    return float(ratio.nan_to_num_(0.0, 0.0, 0.0).max()), False


def _errors_of_rows(
    model: Any, inputs: list[Any], outputs: Outputs, *, changed: list[int], **terms: Any
) -> OwnErrors:
    """Errors of the first rows of a batch, taken for all; unknown where rows are not alike."""
    scales: list[Scales | None] = [None for _ in outputs]
    unknown = OwnErrors(packed=[torch.zeros(0) for _ in outputs], largest=0.0, scales=scales)
    batch = next((one.shape[0] for one in leaves(inputs) if one.ndim), 0)
    rows = batch // ROWS_DIVISOR
    if not 0 < rows < batch or any(not one.ndim or one.shape[0] != batch for one in outputs):
        return unknown

    def first(_: int, value: torch.Tensor) -> torch.Tensor:
        return value[:rows].clone() if value.ndim and value.shape[0] == batch else value

    part = replaced(inputs, first)
    try:
        results = call(model, part).results(changed)
    except Exception:  # some sizes are written into a model
        return unknown
    if not all(_is_start(a, b) for a, b in zip(results, outputs, strict=True)):
        return unknown
    found = errors_of(model, part, results, changed=changed, **terms)
    packed = [
        spread(one, tuple(result.shape), tuple(output.shape))
        for one, result, output in zip(found.packed, results, outputs, strict=True)
    ]
    return OwnErrors(packed=packed, largest=found.largest, scales=scales)


def _is_start(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """True if a result for some rows is the beginning of that for all."""
    start = whole[: part.shape[0]]
    return part.shape == start.shape and torch.allclose(part, start, 1e-3, 1e-5, equal_nan=True)


def count_work(model: Any, inputs: list[Any]) -> OpCounter | None:
    """Work of torch in one call, by operation; None where it cannot be counted."""
    model, inputs = copied(model), copy.deepcopy(inputs)
    try:
        own = [*model.parameters(), *model.buffers()]
        with OpCounter(own, inputs=leaves(inputs)) as counter:
            call_on(model, inputs)
    except Exception:  # it ran before: some torch code refuses to run under a mode
        return None
    return counter


def has_products(counted: OpCounter | None) -> bool:
    """True if a call has products that TF32 may make inexact."""
    if counted is None:
        return False
    return counted.flops > 0 or any(part in name for name in counted.work for part in RECURRENT)


def rounding_of(counted: OpCounter | None, precision: str) -> str:
    """The coarsest precision that a reference rounds to: the problem's, or that of half-precision
    results that it has on the way to an output of fp32."""
    halves = set[str]() if counted is None else counted.halves
    return max({precision, *halves}, key=lambda one: (TOLERANCE[one], one == precision))


def _rounded_operands(model: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
    """In float64, cut to what TF32 keeps of them once they are scaled."""
    model, inputs = copied(model), copy.deepcopy(inputs)
    for tensor in [*leaves(inputs), *model.parameters(), *model.buffers()]:
        if tensor.dtype is torch.float32 and tensor.numel() and not is_categorical(tensor):
            tensor.copy_(_to_tf32(tensor.contiguous() * PRESCALE) / PRESCALE)
    return model, inputs


def _to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """[shape] cut to ten bits of mantissa, as tensor cores read fp32: worse than rounding, since on
    values of one sign it adds up."""
    return (tensor.view(torch.int32) & -(1 << DROPPED_BITS)).view(torch.float32)


def _nudged(value: torch.Tensor, *, least_bytes: int) -> torch.Tensor:
    """Continuous values of `least_bytes` or more moved by up to half of their last bit, in float64;
    noise of 16 bits is fine enough. Else half precision stays: what is computed from it has finer
    steps."""
    is_wide = value.is_floating_point() and value.itemsize >= least_bytes
    if not is_wide or not value.numel() or is_categorical(value):
        return to_double(value)
    made = torch.empty_like(value, dtype=torch.float64)
    step = torch.finfo(value.dtype).eps / 2 / -NOISE_LEAST

    def move(block: Block, noise: torch.Tensor) -> None:
        part = value[block]
        noise = noise.view(part.shape).to(torch.float64)
        torch.mul(noise.add_(0.5).mul_(step).add_(1), part, out=made[block])

    left = torch.empty(0, dtype=torch.int16, device=value.device)
    with THREADS.each(move) as moved:
        for block in blocks_of(value):
            num = value[block].numel()
            words = -(-(num - len(left)) // NOISE_A_WORD)
            drawn = torch.empty(words, dtype=torch.int64, device=value.device)
            noise = drawn.random_(torch.iinfo(torch.int64).min, None).view(torch.int16)
            noise = torch.cat([left, noise]) if len(left) else noise
            left = noise[num:]
            moved(block, noise[:num])
    return made


def _at(results: Outputs | None, number: int, output: torch.Tensor) -> torch.Tensor | None:
    """One result in float64; None where it says nothing of `output`."""
    if results is None or number >= len(results) or not output.is_floating_point():
        return None
    return results[number].double() if results[number].shape == output.shape else None
