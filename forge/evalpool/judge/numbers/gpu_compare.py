"""Does an output on a GPU agree with the reference? `compare.py` in torch, block by block.

Called by `gpu_run.py`, on the judge's own copy of an output. The same tolerance and words; fp32
and narrower are compared in fp32, whose rounding is 1,000 times below the tightest tolerance, fp64
in its own type. Integers and bools must be equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from forge.evalpool.judge.numbers.compare import ERROR_FACTOR, describe, tolerance

CHUNK = 1 << 26
"""Elements at once: 64 Mi of them and their differences take about 2 GB."""


@dataclass(slots=True)
class Differences:
    """Differences found in all chunks together."""

    num_differing: int = 0
    first: int = -1
    """Flat index of the first that differs."""
    largest: float = 0.0
    """Absolute error among finite values."""
    num_unset: int = 0
    """NaN where the reference has none."""


def mismatch(
    got: torch.Tensor,
    expected: torch.Tensor,
    error: torch.Tensor,
    *,
    rms: float,
    precision: str,
    name: str = "output",
) -> str | None:
    """None when it agrees; else the first mismatch with statistics, in one line.

    Args:
        got, expected: [shape], of one type and shape, contiguous.
        error: [shape] |eager - eager in float64|, or empty.
        rms: of `expected`, by `finite_rms`.
    """
    if expected.numel() == 0:
        return None
    flat_got, flat_expected, flat_error = got.view(-1), expected.view(-1), error.view(-1)
    found = Differences()
    for start in range(0, flat_expected.numel(), CHUNK):
        stop = start + CHUNK
        part = flat_error[start:stop] if flat_error.numel() else None
        _add(found, flat_got[start:stop], flat_expected[start:stop], part, rms, precision, start)
    if found.num_differing == 0:
        return None
    index = _unravel(found.first, list(expected.shape))
    return describe(
        index=index,
        expected=_number(flat_expected[found.first]),
        got=_number(flat_got[found.first]),
        num_differing=found.num_differing,
        size=expected.numel(),
        largest=found.largest,
        num_unset=found.num_unset,
        name=name,
    )


def is_unwritten(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """True if a floating output is all NaN though the reference is not."""
    if not got.is_floating_point() or expected.numel() == 0:
        return False
    return bool(got.isnan().all()) and not bool(expected.isnan().all())


def _add(
    found: Differences,
    got: torch.Tensor,
    expected: torch.Tensor,
    error: torch.Tensor | None,
    rms: float,
    precision: str,
    start: int,
) -> None:
    kind = expected.dtype
    is_narrow = kind.is_floating_point and kind is not torch.float64
    wide = torch.float32 if is_narrow else torch.float64
    given = got, expected
    got, expected = got.to(wide), expected.to(wide)
    difference = (got - expected).abs_()
    if kind.is_floating_point:
        close = tolerance(_name(kind), precision)
        allowed = expected.abs().mul_(close).add_(rms * close)
        if error is not None:
            allowed.add_(error, alpha=ERROR_FACTOR)
        allowed.clamp_(max=torch.finfo(wide).max)  # an infinite reference does not allow anything
        differs = (difference <= allowed).logical_not_()
    else:
        differs = given[0] != given[1]
    if not bool(differs.any()):
        return
    # Infinite and NaN elements are among those that differ so far.
    same = (got == expected) | (got.isnan() & expected.isnan())
    differs = differs & ~(same & ~expected.isfinite())
    num = int(differs.count_nonzero())
    if not num:
        return
    if found.first < 0:
        found.first = start + int(differs.to(torch.uint8).argmax())
    found.num_differing += num
    found.num_unset += int((got.isnan() & ~expected.isnan()).count_nonzero())
    finite = difference.nan_to_num_(0.0, 0.0, 0.0)
    found.largest = max(found.largest, float(finite.max()))


def finite_rms(tensor: torch.Tensor) -> float:
    """Root mean square of the finite elements; 0 for types without tolerance."""
    if not tensor.is_floating_point():
        return 0.0
    flat = tensor.view(-1)
    norms, num = [], 0
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK]
        is_finite = part.isfinite()
        part = part.where(is_finite, 0.0).to(torch.float64).abs_()
        if largest := float(part.max()):  # no square is too large for its type
            norms.append(largest * math.sqrt(float(part.div_(largest).square_().sum())))
        num += int(is_finite.count_nonzero())
    return math.hypot(*norms) / math.sqrt(num) if num else 0.0


def _number(value: torch.Tensor) -> float:
    return float(value) if value.is_floating_point() else int(value)


def _unravel(index: int, shape: list[int]) -> tuple[int, ...]:
    out: list[int] = []
    for size in reversed(shape):
        out.append(index % size)
        index //= size
    return tuple(reversed(out))


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")
