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
"""Elements that are computed at once; of smaller tensors what is allowed is kept: 256 KiB."""

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
    """The scale of each row, and of each column."""
    _allowed: Part | None = None
    """[rows, columns] of a small tensor; negative where the reference is not finite."""
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

    def prepare(self) -> tuple[Part, Part]:
        """The scales, computed before the first comparison or in it."""
        with self._lock, np.errstate(invalid="ignore"):
            if self._scales is None:
                self._scales = _scales(self)
                if self.size <= BLOCK_ELEMENTS:
                    for block, wanted in parts(self, self.data):
                        allowed = self.allowed(block, wanted)
                        self._allowed = np.where(np.isfinite(wanted), allowed, -1.0)
            return self._scales

    def allowed(self, block: Block, wanted: Part) -> Part:
        """The largest accepted differences of a block with these expected values."""
        if self._allowed is not None:
            return self._allowed
        assert self._scales is not None
        rows, columns = self._scales
        found = np.abs(wanted)
        found += np.minimum(rows[block[0]][:, None], columns[block[1]])
        found *= self.question.tolerance
        return found

    def below(self, block: Block, wanted: Part, scratch: Part) -> Part:
        """The same or less, in memory that is at hand: with the smallest scale of the block."""
        if self._allowed is not None:
            return self._allowed
        assert self._scales is not None
        rows, columns = self._scales
        np.abs(wanted, out=scratch)
        scratch += min(float(rows[block[0]].min()), float(columns[block[1]].min()))
        scratch *= self.question.tolerance
        return scratch


def agrees(wanted: Wanted, data: Data) -> bool:
    """True if an output is the reference's under the question."""
    return differing(wanted, data) is None


def differing(wanted: Wanted, data: Data) -> Mask | None:
    """[shape] True for each element that differs; None where the output agrees."""
    if _agrees(wanted, data):
        return None
    if wanted.question.is_close:
        return _not_close(wanted, data)
    if wanted.spec.dtype not in FLOATING:
        return _differing(wanted, data)[0]
    found = np.zeros(wanted.matrix, np.bool_)
    with np.errstate(invalid="ignore"):
        for block, got, expected in _pairs(wanted, data):
            near = np.abs(got - expected) <= wanted.allowed(block, expected)
            is_special = ~np.isfinite(expected)
            found[block] = ~np.where(is_special, _is_equal(got, expected), near)
    found = found.reshape(wanted.spec.shape)
    if wanted.exact is not None:
        is_own = wanted.exact.spec == wanted.spec
        others = differing(
            wanted.exact, data if is_own else decode(wanted.spec, data).data.cast("B")
        )
        if others is None or not (found := found & others).any():
            return None
    return found


def _agrees(wanted: Wanted, data: Data) -> bool:
    """True if it is what the reference gives in the same types."""
    if wanted.question.is_close:
        return not _not_close(wanted, data).any()
    if wanted.spec.dtype not in FLOATING:
        return is_same(data, wanted.data) or bool(wanted.question.allows(*_differing(wanted, data)))
    wanted.prepare()
    scratch = _scratch(wanted), _scratch(wanted)
    with np.errstate(invalid="ignore"):
        return all(
            _is_near(wanted, block, got, expected, scratch)
            for block, got, expected in _pairs(wanted, data)
        )


def parts(wanted: Wanted, data: Data) -> Iterator[tuple[Block, Part]]:
    """Blocks of [rows, columns] in order, each with its elements in memory that the next one
    overwrites."""
    scratch, start = _scratch(wanted), 0
    for block in blocks(wanted.matrix, BLOCK_ELEMENTS) if wanted.size else ():
        shape = [one.stop - one.start for one in block]
        part = scratch[: math.prod(shape)]
        decode_part(wanted.spec.dtype, data, start=start, target=part)
        yield block, part.reshape(shape)
        start += len(part)


def _scratch(wanted: Wanted) -> Part:
    """Memory for a block."""
    return np.empty(min(wanted.size, BLOCK_ELEMENTS))


def _pairs(wanted: Wanted, data: Data) -> Iterator[tuple[Block, Part, Part]]:
    both = zip(parts(wanted, data), parts(wanted, wanted.data), strict=True)
    return ((block, got, expected) for (block, got), (_, expected) in both)


def _is_near(
    wanted: Wanted, block: Block, got: Part, expected: Part, scratch: tuple[Part, Part]
) -> bool:
    """True if no element of a block differs."""
    difference, below = (one[: got.size].reshape(got.shape) for one in scratch)
    np.abs(np.subtract(got, expected, out=difference), out=difference)
    below = wanted.below(block, expected, below)
    if difference.max() < math.inf and bool((difference <= below).all()):  # all are finite
        return True
    near = difference <= wanted.allowed(block, expected)
    is_special = ~np.isfinite(expected)
    return bool(np.where(is_special, _is_equal(got, expected), near).all())


def _is_equal(one: Part, other: Part) -> Mask:
    found: Mask = (one == other) | (np.isnan(one) & np.isnan(other))
    return found


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
