# pyright: strict
"""Question 1's and question 2's comparison of an output with the reference, in numpy.

    |got - ref| ≤ tol · (|ref| + scale)

    1  the same function?      both in float64, tol = 1e-6. scale is the rms of the element's row
                               (along the last axis) or of its column (all elements with its index
                               on the last axis), the smaller of both, and at least 1e-4 of the
                               rms of all.
                               Integers are equal.
    2  how much does it lose?  in the problem's own types, tol of the protocol, scale the rms of
                               all. Integers are eager's or the exact ones. Where a rounding decides
                               on some, tol of them, or one, may be others, and √tol, or one, of
                               8 or 16 bits may be one off; but no whole row.

Of another protocol there is one question, `torch.allclose(reference, candidate)`: scale is 1, the
relative tolerance is of the candidate's value, NaN equals nothing, and booleans are equal.

NaN equals NaN, an infinity the same infinity. In no rms: elements that are not finite, and a
sentinel, as the -1e9 of masked scores: magnitudes of more than half of the largest, if that is 1e4
or more and all others are 1,000 times smaller. No other terms. Blocks stay in the processor's
caches; what depends on the reference alone is computed once a draw.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.channel.shm import FLOATING, decode, decode_part, integers, is_same
from forge.evalpool.judge.numbers.blocks import blocks
from forge.evalpool.judge.numbers.protocols import PRECISION, TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.evalpool.judge.channel.shm import Data, TensorSpec
    from forge.evalpool.judge.numbers.blocks import Block

SAME, DOUBLE = 1e-6, 1e-10
"""tol of question 1: float64 loses 1e-12, a constant that is written in float32 1e-7; and of a
problem in float64, in which a cast to float32 loses as much."""
LEAST_SCALE = 1e-4
"""Least scale of question 1, in rms of all: what cancels in a whole row loses some of that."""
BF16 = 2e-2
"""tol of question 2 in bf16: five of its roundings, as many as a rotary embedding and a softmax
make one after the other."""
MIN_SLAB = 16
"""Elements of a row that are not all wrong by a rounding."""
QUANTISED = ("int8", "uint8", "int16", "uint16")
"""Types of integers that are rounded numbers, and neither positions nor flags."""
SENTINEL_RATIO, LEAST_SENTINEL = 1e-3, 1e4
BLOCK_ELEMENTS = 1 << 15
"""Elements that are computed at once: 256 KiB."""

Part = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Question:
    """One of the two: its tolerance, and whether rows and columns have scales of their own."""

    tolerance: float
    is_same: bool = False
    """True for question 1."""
    is_alone: bool = False
    """True for a question 2 whose question 1 is not asked: more integers may differ, if many."""
    is_close: bool = False
    """True for another protocol's."""

    def allows(self, differs: Any, steps: Any) -> Any:
        """True if so few integers differ, of which some by a step of what is quantised.

        Args:
            differs, steps: masks of numpy, or of torch on a card, which nothing here waits for.
        """
        num, size = differs.sum(), math.prod(differs.shape)
        if self.is_same or self.is_close:
            return num == 0
        few = math.sqrt(self.tolerance) * size
        near = int(few) if self.is_alone else max(1.0, few)
        far = near if self.is_alone else max(1.0, self.tolerance * size)
        found = (num <= near) & ((differs & ~steps).sum() <= far)
        if differs.ndim > 1 and differs.shape[-1] >= MIN_SLAB:
            found = found & ~differs.all(-1).any()
        return found


SAME_FUNCTION = Question(SAME, is_same=True)
DOUBLE_FUNCTION = Question(DOUBLE, is_same=True)


def real_question(dtype: str, precision: str) -> Question:
    """Question 2 of an output.

    Args:
        dtype: of the output.
        precision: the coarsest that the reference rounds to.
    """
    found = max(TOLERANCE[precision], TOLERANCE[PRECISION.get(dtype, precision)])
    is_coarse = "bf16" in (precision, PRECISION.get(dtype))
    return Question(max(found, BF16) if is_coarse else found)


@dataclass(slots=True, kw_only=True)
class Wanted:
    """One output of the reference under a question. Safe in several threads."""

    spec: TensorSpec
    data: Data
    """As the oracle wrote it. Nobody else may write to it."""
    question: Question
    exact: Wanted | None = None
    """The same output by float64: an element may be as near to it, or the same integer."""
    _scales: tuple[Part, Part] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.spec.shape)

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows along the last axis, and columns."""
        last = self.spec.shape[-1] if self.spec.shape else 1
        return (self.size // last if last else 0, last)

    @property
    def scales(self) -> tuple[Part, Part]:
        """The scale of each row, and of each column, computed once."""
        with self._lock, np.errstate(invalid="ignore"):
            if self._scales is None:
                self._scales = _scales(self)
            return self._scales


def agrees(wanted: Wanted, data: Data) -> bool:
    """True if an output is the reference's under the question."""
    return differing(wanted, data) is None


def differing(wanted: Wanted, data: Data) -> Mask | None:
    """[shape] True for each element that differs; None where the output agrees."""
    if wanted.question.is_close:
        found = _not_close(wanted, data)
        return found if found.any() else None
    if wanted.spec.dtype not in FLOATING:
        if is_same(data, wanted.data):
            return None
        found, steps = _differing(wanted, data)
        return None if wanted.question.allows(found, steps) else found
    if (found := _far(wanted, data)) is not None and wanted.exact is not None:
        is_own = wanted.exact.spec == wanted.spec
        given = data if is_own else decode(wanted.spec, data).data.cast("B")
        others = differing(wanted.exact, given)
        found = None if others is None or not (found & others).any() else found & others
    return found


def _far(wanted: Wanted, data: Data) -> Mask | None:
    """The floats that differ from what the reference gives in the same types."""
    found, is_any, (rows, columns) = np.zeros(wanted.matrix, np.bool_), False, wanted.scales
    pairs = zip(parts(wanted, data), parts(wanted, wanted.data), strict=True)
    with np.errstate(invalid="ignore"):
        for (block, got), (_, expected) in pairs:
            allowed = np.abs(expected)
            allowed += np.minimum(rows[block[0]][:, None], columns[block[1]])
            allowed *= wanted.question.tolerance
            difference = got - expected
            np.abs(difference, out=difference)
            is_far = difference > allowed
            if not difference.max() < math.inf:  # some are not finite
                is_equal = (got == expected) | (np.isnan(got) & np.isnan(expected))
                is_near = np.where(np.isfinite(expected), difference <= allowed, is_equal)
                is_far = ~is_near
            if is_far.any():
                found[block], is_any = is_far, True
    return found.reshape(wanted.spec.shape) if is_any else None


def parts(wanted: Wanted, data: Data) -> Iterator[tuple[Block, Part]]:
    """Blocks of [rows, columns] in order, each with its elements in memory that the next one
    overwrites."""
    scratch, start = np.empty(min(wanted.size, BLOCK_ELEMENTS)), 0
    for block in blocks(wanted.matrix, BLOCK_ELEMENTS) if wanted.size else ():
        shape = [one.stop - one.start for one in block]
        part = scratch[: math.prod(shape)]
        decode_part(wanted.spec.dtype, data, start=start, target=part)
        yield block, part.reshape(shape)
        start += len(part)


def _not_close(wanted: Wanted, data: Data) -> Mask:
    """The elements that another protocol refuses."""
    spec, tolerance = wanted.spec, wanted.question.tolerance
    if spec.dtype == "bool":
        found: Mask = integers(spec, data) != integers(spec, wanted.data)
        return found
    got, expected = decode(spec, data), decode(spec, wanted.data)
    with np.errstate(invalid="ignore"):
        near = np.abs(got - expected) <= tolerance + tolerance * np.abs(got)
    return ~((near & np.isfinite(got)) | (got == expected))


def _differing(wanted: Wanted, data: Data) -> tuple[Mask, Mask]:
    """The integers that are wrong, and those that are a step of what is quantised away."""
    spec = wanted.spec
    got, expected = integers(spec, data), integers(spec, wanted.data)
    differs: Mask = got != expected
    if wanted.exact is not None:
        differs &= got != integers(spec, wanted.exact.data)
    if spec.dtype not in QUANTISED:
        return differs, np.zeros_like(differs)
    steps: Mask = np.abs(got.astype(np.int64) - expected.astype(np.int64)) <= 1
    return differs, steps


def _scales(wanted: Wanted) -> tuple[Part, Part]:
    """The scale of each row and of each column."""
    num_rows, num_columns = wanted.matrix
    largest = _largest(wanted, math.inf)
    below = _largest(wanted, largest / 2)
    is_sentinel = largest >= LEAST_SENTINEL and 0.0 < below < SENTINEL_RATIO * largest
    most = below if is_sentinel else largest
    rows, columns = np.zeros(num_rows), np.zeros(num_columns)
    counts = np.zeros(num_rows), np.zeros(num_columns)
    for block, part in parts(wanted, wanted.data) if most else ():
        counted = np.abs(part, out=part) <= most  # false for NaN
        is_whole = bool(counted.all())
        if not is_whole:
            part[~counted] = 0.0
        np.square(np.divide(part, most, out=part), out=part)
        for axis, total, count in ((1, rows, counts[0]), (0, columns, counts[1])):
            total[block[1 - axis]] += part.sum(axis=axis)
            count[block[1 - axis]] += part.shape[axis] if is_whole else counted.sum(axis=axis)
    whole = most * math.sqrt(rows.sum() / max(1.0, counts[0].sum()))

    def scale(total: Part, count: Part) -> Part:
        if not wanted.question.is_same:
            return np.full(len(total), whole)
        rms = most * np.sqrt(total / np.maximum(count, 1.0))
        return np.maximum(rms, LEAST_SCALE * whole)

    return scale(rows, counts[0]), scale(columns, counts[1])


def _largest(wanted: Wanted, limit: float) -> float:
    """Largest magnitude below a limit; 0 if there is none."""
    found = 0.0
    for _, part in parts(wanted, wanted.data):
        np.abs(part, out=part)
        found = max(found, float(part.max(initial=0.0, where=part < limit)))
    return found
