# pyright: strict
"""Question 1's and question 2's comparison on a card: compare.py's formulas in torch.

Called on the judge's own copies of outputs. Blocks bound the memory, and what depends on the
reference alone is computed once a draw. Nothing waits for the card but `agree`, once for all
outputs of several calls, and the words for an output that differs: elements of it are fetched as
patterns.py asks for them.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from forge.evalpool.judge.numbers.blocks import CHUNK, blocks, limit_on
from forge.evalpool.judge.numbers.called import dtype_name
from forge.evalpool.judge.wide.compare import (
    LEAST_SCALE,
    LEAST_SENTINEL,
    QUANTISED,
    SENTINEL_RATIO,
    Question,
)
from forge.evalpool.judge.wide.look import Values
from forge.evalpool.judge.wide.patterns import describe, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forge.evalpool.judge.numbers.blocks import Block
    from forge.evalpool.judge.wide.look import Operands

MAX_MASK = 1 << 26
"""Elements of an output whose mask of what differs goes to the host; of a larger one no pattern is
looked for."""

PLAIN = (1e-100, LEAST_SENTINEL)
"""Largest magnitudes of an output without a sentinel."""
LOOKED_AT = 1 << 22
"""Elements of a block from which on it pays to wait for the card."""

Mask = NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class CardWanted:
    """One output of the reference under a question. Safe in several threads."""

    tensor: torch.Tensor
    question: Question
    exact: CardWanted | None = None
    """The same output by float64: eager's own roundings are no demand in question 2, where an
    element may be as near to this one, or the same integer."""
    _scales: tuple[torch.Tensor, torch.Tensor] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The scale of each row and of each column."""
        with self._lock:
            if self._scales is None:
                self._scales = _scales(self.tensor, self.question)
            return self._scales

    def differing(self, block: Block, got: torch.Tensor) -> torch.Tensor:
        """[rows, columns] of a block, True where it differs, still on the card."""
        wanted = matrix(self.tensor)[block]
        if self.question.is_close and self.tensor.dtype is not torch.bool:
            got, wanted = got.double(), wanted.double()
            allowed = got.abs().mul_(self.question.tolerance).add_(self.question.tolerance)
            near = ((got - wanted).abs_() <= allowed) & got.isfinite()
            return (near | (got == wanted)).logical_not_()
        if not self.tensor.is_floating_point():
            differs = got != wanted
            if self.exact is not None:
                differs &= got != matrix(self.exact.tensor)[block]
            return differs
        found = self._is_far(block, got, wanted.double())
        if self.exact is not None and not _are_none(found):
            found &= self.exact.differing(block, got)
        return found

    def _is_far(self, block: Block, got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        rows, columns = self.scales
        got = got.double()
        allowed = torch.minimum(rows[block[0]][:, None], columns[block[1]])
        allowed = wanted.abs().add_(allowed).mul_(self.question.tolerance)
        is_near = (got - wanted).abs_() <= allowed
        is_far = is_near.logical_not()
        if _are_none(is_far):  # then all are finite
            return is_far
        is_equal = (got == wanted) | (got.isnan() & wanted.isnan())
        return torch.where(wanted.isfinite(), is_near, is_equal).logical_not_()

    def allows(self, differs: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
        """True if the elements that differ, [shape], may do so, still on the card."""
        if self.tensor.is_floating_point():
            return differs.any().logical_not()
        steps = torch.zeros_like(differs)
        if dtype_name(self.tensor) in QUANTISED:
            steps = (got.long() - self.tensor.long()).abs() <= 1
        return self.question.allows(differs, steps)


def matrix(tensor: torch.Tensor) -> torch.Tensor:
    """[rows along the last axis, columns] of a tensor; of booleans their bytes, since one that
    nothing wrote is 255 and would be true."""
    tensor = tensor.contiguous()
    tensor = tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor
    return tensor.reshape(-1, tensor.shape[-1] if tensor.dim() and tensor.numel() else 1)


def agree(pairs: Sequence[tuple[torch.Tensor, CardWanted]]) -> list[bool]:
    """For each output and the expected one, True if it agrees. Waits for the card once."""
    flags = [wanted.allows(_mask(got, wanted), got) for got, wanted in pairs]
    return [bool(flag) for flag in torch.stack(flags).cpu().numpy()] if flags else []


def mismatch(
    got: torch.Tensor, wanted: CardWanted, *, name: str = "output", operands: Operands = tuple
) -> tuple[str, Mask | None] | None:
    """None where an output agrees; else what differs first and the pattern of it, in words, and
    [shape] True for each element that differs; None of a large output.

    Args:
        operands: what the output is made from, asked where it is wrong.
    """
    right = wanted.tensor
    differs = _mask(got, wanted)
    if bool(wanted.allows(differs, got)):
        return None
    first = int(differs.to(torch.uint8).argmax())
    pair = _number(right.reshape(-1)[first]), _number(got.reshape(-1)[first])
    if differs.numel() > MAX_MASK:
        return describe(first, pair, tuple(right.shape), int(differs.sum()), name=name), None
    mask = differs.cpu().numpy()
    expected, values = values_of(right, name=name), values_of(got, name=name)
    return words_of(expected, values, mask, pair=pair, name=name, operands=operands), mask


def _are_none(flags: torch.Tensor) -> bool:
    """True if none is known to be True: a block of a large output is looked at, which saves some
    passes over it."""
    return flags.numel() >= LOOKED_AT and not bool(flags.any())


def _mask(got: torch.Tensor, wanted: CardWanted) -> torch.Tensor:
    """[shape] True where an output differs, still on the card."""
    found = torch.zeros(wanted.tensor.shape, dtype=torch.bool, device=wanted.tensor.device)
    rows = matrix(found).view(torch.bool)
    for block, part in _parts(got):
        rows[block] = wanted.differing(block, part)
    return found


def is_unwritten(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """True if a floating output is all NaN though the reference is not."""
    if not got.is_floating_point() or expected.numel() == 0:
        return False
    return _is_all_nan(got) and not _is_all_nan(expected)


def values_of(tensor: torch.Tensor, *, name: str = "output") -> Values:
    """A tensor whose elements are fetched where they are needed."""

    def take(found: NDArray[np.int64]) -> NDArray[np.float64]:
        index = torch.as_tensor(found.reshape(-1), device=tensor.device)
        part = tensor.reshape(-1)[index]
        return part.double().cpu().numpy().reshape(found.shape)

    return Values(shape=tuple(tensor.shape), take=take, dtype=dtype_name(tensor), name=name)


def _is_all_nan(tensor: torch.Tensor) -> bool:
    return all(bool(part.double().isnan().all()) for _, part in _parts(tensor))


def _number(value: torch.Tensor) -> float:
    if value.dtype is torch.bool:
        value = value.view(torch.uint8)
    return float(value) if value.is_floating_point() else int(value)


def _parts(tensor: torch.Tensor) -> Iterator[tuple[Block, torch.Tensor]]:
    """Blocks of [rows, columns] in order, each with its elements."""
    if not tensor.numel():
        return
    found = matrix(tensor)
    for block in blocks(tuple(found.shape), limit_on(tensor.device)):
        yield block, found[block]


def _scales(tensor: torch.Tensor, question: Question) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale of each row and of each column, still on the card."""
    shape, device = matrix(tensor).shape, tensor.device
    is_plain = tensor.numel() > CHUNK and tensor.element_size() > 1  # float8 has no order there
    if is_plain and (plain := _plain_scales(tensor, question)) is not None:
        return plain
    none = torch.zeros((), dtype=torch.float64, device=device)
    largest = _largest(tensor, none + math.inf)
    below = _largest(tensor, largest / 2)
    is_sentinel = (largest >= LEAST_SENTINEL) & (below > 0) & (below < SENTINEL_RATIO * largest)
    most = torch.where(is_sentinel, below, largest)
    unit = torch.where(most > 0, most, 1.0)
    totals = [torch.zeros(n, dtype=torch.float64, device=device) for n in shape]
    counts = [torch.zeros(n, dtype=torch.float64, device=device) for n in shape]
    for block, part in _parts(tensor):
        size = part.double().abs()
        counted = size <= most  # false for NaN
        square = torch.where(counted, size / unit, 0.0).square_()
        for axis in (0, 1):
            totals[axis][block[axis]] += square.sum(1 - axis)
            counts[axis][block[axis]] += counted.sum(1 - axis)
    rms = [unit * (totals[n] / counts[n].clamp(min=1.0)).sqrt() for n in (0, 1)]
    whole = unit * (totals[0].sum() / counts[0].sum().clamp(min=1.0)).sqrt()
    return _of_slabs(rms, whole, question)


def _of_slabs(
    rms: Sequence[torch.Tensor], whole: torch.Tensor, question: Question
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales, of the rms of each row and column and of all elements."""
    if not question.is_same:
        return whole.expand(len(rms[0])), whole.expand(len(rms[1]))
    least = LEAST_SCALE * whole
    return torch.maximum(rms[0], least), torch.maximum(rms[1], least)


def _plain_scales(
    tensor: torch.Tensor, question: Question
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The same of a large output in two passes over it; None where it has a sentinel or something
    that is not finite, or where squares would overflow or vanish."""
    largest = max(-float(tensor.min()), float(tensor.max()))
    if not PLAIN[0] < largest < PLAIN[1]:  # false for NaN
        return None
    shape = matrix(tensor).shape
    totals = [torch.zeros(n, dtype=torch.float64, device=tensor.device) for n in shape]
    for block, part in _parts(tensor):
        square = part.double().square()
        for axis in (0, 1) if question.is_same else (0,):
            totals[axis][block[axis]] += square.sum(1 - axis)
    rms = [(totals[n] / shape[1 - n]).sqrt() for n in (0, 1)]
    return _of_slabs(rms, (totals[0].sum() / tensor.numel()).sqrt(), question)


def _largest(tensor: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """Largest magnitude below a limit; 0 if there is none."""
    found = torch.zeros((), dtype=torch.float64, device=tensor.device)
    for _, part in _parts(tensor):
        size = part.double().abs()
        found = torch.maximum(found, torch.where(size < limit, size, 0.0).max())
    return found
