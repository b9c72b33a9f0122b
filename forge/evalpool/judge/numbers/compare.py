"""Comparison of an output with the reference, in numpy, block by block.

Called by the judge on a CPU. The tolerance is that of tolerance.py, element by element. Blocks stay
in the processor's caches: each pass over fresh memory of a large tensor takes as long as all of its
arithmetic, so the expected values and their tolerances are never arrays of the tensor's size.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.channel.shm import (
    FLOATING,
    decode,
    decode_part,
    integers,
    is_same,
    unwritten,
)
from forge.evalpool.judge.numbers.blocks import blocks
from forge.evalpool.judge.numbers.tolerance import (
    ERROR_FACTOR,
    SENTINEL_RATIO,
    families,
    floors_of,
    is_sentinel,
    tolerance,
)
from forge.evalpool.judge.wide.patterns import mismatch_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forge.evalpool.judge.channel.shm import Data, TensorSpec
    from forge.evalpool.judge.numbers.blocks import Block
    from forge.evalpool.judge.wide.look import Operands

BLOCK_ELEMENTS = 1 << 15
"""Elements that are computed at once: 256 KiB an array of float64."""
NEAR_ELEMENTS, MIN_NEAR = 1 << 16, 1 << 20
"""The same where two tensors of at least so many elements are compared: each operation is short,
and Python's part of it counts. Of smaller ones fresh memory for larger blocks costs more."""

Part = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One output of the reference, ready to compare with."""

    spec: TensorSpec
    data: Data
    """As the oracle wrote it. Nobody else may write to it."""
    limits: Limits | None
    """None for integers and bools, which must be equal."""
    num_rounded: int = 0
    """Integers that may be off by one (errors/rounded.py)."""

    @classmethod
    def make(cls, spec: TensorSpec, data: Data, *, error: Data, precision: str) -> Expected:
        """From the bytes that the oracle wrote; `error` in float32 has the own errors of each slab
        and perhaps its least scale (shares.py), or is empty where own errors are unknown."""
        if spec.dtype in FLOATING:
            limits = Limits.make(spec, data, error=error, precision=precision)
            return cls(spec=spec, data=data, limits=limits)
        return cls(
            spec=spec,
            data=data,
            limits=None,
            num_rounded=int(np.frombuffer(error, np.float32).sum()),
        )

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.spec.shape)

    @property
    def values(self) -> Part:
        """[shape] as float64; integers and bools too."""
        return decode(self.spec, self.data)

    @property
    def allowed(self) -> Part:
        """[shape] largest accepted |got - ref|; 0 for integers."""
        found = np.zeros(self.spec.shape)
        if self.limits is not None:
            with np.errstate(invalid="ignore"):
                for block, wanted in _parts(self.spec, self.data):
                    found[block] = self.limits.at(block, wanted)
        return found

    def prepare(self) -> None:
        """Computes what the first comparison would compute."""
        if self.limits is not None:
            self.limits.prepare()


@dataclass(slots=True, kw_only=True)
class Limits:
    """Tolerances of one output, from a few vectors and its values."""

    spec: TensorSpec
    data: Data
    close: float
    floors: Sequence[float | Part]
    """Least scales by family."""
    errors: list[Part]
    """Own errors by family; empty where they are unknown."""
    _scales: list[Part] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def make(cls, spec: TensorSpec, data: Data, *, error: Data, precision: str) -> Limits:
        """As of `Expected.make`."""
        lost = np.frombuffer(error, np.float32).astype(np.float64)
        sizes = [math.prod(spec.shape[axis] for axis in axes) for axes in families(spec.shape)]
        num = sum(sizes)
        is_known = lost.size in (num, 2 * num)
        cuts = np.cumsum(sizes)[:-1]
        floors: Sequence[float | Part] = floors_of(spec.dtype, precision, spec.shape)
        if is_known and lost.size > num:
            floors = np.split(lost[num:], cuts)
        return cls(
            spec=spec,
            data=data,
            close=tolerance(spec.dtype, precision, is_error_known=is_known),
            floors=floors,
            errors=_wide(np.split(lost[:num], cuts), spec.shape) if is_known else [],
        )

    def prepare(self) -> list[Part]:
        """The scales of tolerance.py, wide, one array a family; none where all is 0."""
        with self._lock:
            if self._scales is None:
                with np.errstate(invalid="ignore"):
                    self._scales = _scales(self.spec, self.data, floors=self.floors)
            return self._scales

    def at(self, block: Block, wanted: Part) -> Part:
        """The tolerances of a block with these expected values."""
        scales = self.prepare()
        allowed = np.abs(wanted)
        if scales:
            allowed += _least(scales, block)
        allowed *= self.close
        if self.errors:
            allowed += ERROR_FACTOR * _least(self.errors, block)
        return allowed

    def below(self, block: Block, wanted: Part, *, out: Part) -> Part:
        """The same or less, with fewer passes: with the smallest scale and error of the block."""
        np.abs(wanted, out=out)
        out += _lowest(self.prepare(), block)
        out *= self.close
        out += ERROR_FACTOR * _lowest(self.errors, block)
        return out


def _scales(spec: TensorSpec, data: Data, *, floors: Sequence[float | Part]) -> list[Part]:
    """Scales of tolerance.py, wide, one array a family; none where all is 0."""
    if not math.prod(spec.shape):
        return []
    largest, is_whole = _largest_finite(spec, data)
    if largest == 0.0:
        return []
    if (rest := _below_sentinel(spec, data, largest)) is not None:
        largest, is_whole = rest, False
    groups = families(spec.shape)
    sums = [np.zeros([spec.shape[axis] for axis in axes]) for axes in groups]
    counts = [np.zeros_like(one) for one in sums]
    for block, squares in _parts(spec, data):
        is_counted = None if is_whole else np.abs(squares) <= largest
        if is_counted is not None:
            squares[~is_counted] = 0.0
        squares /= largest
        np.square(squares, out=squares)
        for total, count, axes in zip(sums, counts, groups, strict=True):
            inside = tuple(block[axis] for axis in axes)
            others = tuple(axis for axis in range(squares.ndim) if axis not in axes)
            total[inside] += squares.sum(axis=others)
            if is_counted is None:
                count[inside] += math.prod(squares.shape[axis] for axis in others)
            else:
                count[inside] += is_counted.sum(axis=others)
    whole = math.sqrt(float(sums[0].sum()) / max(1.0, float(counts[0].sum())))
    found = [
        largest * np.maximum(np.sqrt(total / np.maximum(count, 1)).reshape(-1), floor * whole)
        for total, count, floor in zip(sums, counts, floors, strict=True)
    ]
    return _wide(found, spec.shape)


def _largest_finite(spec: TensorSpec, data: Data) -> tuple[float, bool]:
    """Largest magnitude of the finite elements, and True if all of them are finite."""
    largest, is_whole = 0.0, True
    for _, part in _parts(spec, data):
        size = max(-float(part.min()), float(part.max()))  # NaN where one is
        if not math.isfinite(size):
            is_whole = False
            size = float(np.abs(part, out=part).max(initial=0.0, where=np.isfinite(part)))
        largest = max(largest, size)
    return largest, is_whole


def _below_sentinel(spec: TensorSpec, data: Data, largest: float) -> float | None:
    """Largest magnitude below a sentinel; None if the largest is none, as the first block shows in
    most tensors."""
    count, rest = 0, 0.0
    for _, part in _parts(spec, data):
        sizes = np.abs(part, out=part)
        rest = max(rest, float(sizes.max(initial=0.0, where=sizes < largest)))
        if rest >= largest / SENTINEL_RATIO:
            return None
        count += int(np.count_nonzero(sizes == largest))
    return rest if is_sentinel(largest, rest, count) else None


def _wide(parts: Sequence[Part], shape: Sequence[int]) -> list[Part]:
    """Vectors by family with an axis for each of the tensor's, of which most have one element."""
    return [
        part.reshape([size if axis in axes else 1 for axis, size in enumerate(shape)])
        for axes, part in zip(families(shape), parts, strict=True)
    ]


def _inside(wide: Part, block: Block) -> Block:
    """The part of a wide array that a block of the tensor needs."""
    return tuple(
        one if size > 1 else slice(None) for size, one in zip(wide.shape, block, strict=True)
    )


def _least(wide: Sequence[Part], block: Block) -> Part:
    """The smallest value among an element's slabs, for the elements of a block."""
    first, *others = (one[_inside(one, block)] for one in wide)
    for other in others:
        first = np.minimum(first, other)
    return first


def _lowest(wide: Sequence[Part], block: Block) -> float:
    """The smallest value among the slabs of a block's elements; 0 for no family."""
    return min((float(one[_inside(one, block)].min()) for one in wide), default=0.0)


def _parts(
    spec: TensorSpec, data: Data, *, limit: int = BLOCK_ELEMENTS
) -> Iterator[tuple[Block, Part]]:
    """A tensor's blocks in order, each with its elements in memory that the next one overwrites:
    this process returns freed blocks to the system, and would pay for their pages each time."""
    scratch, start = _scratch(spec, limit), 0
    for block in blocks(spec.shape, limit):
        shape = [one.stop - one.start for one in block]
        part = scratch[: math.prod(shape)]
        decode_part(spec.dtype, data, start=start, target=part)
        yield block, part.reshape(shape)
        start += len(part)


def _scratch(spec: TensorSpec, limit: int) -> Part:
    """Memory for a block of a tensor."""
    return np.empty(min(math.prod(spec.shape), limit))


def is_unwritten(expected: Expected, data: Data) -> bool:
    """True if the slot has nothing but what an unwritten one has, and the reference has more."""
    spec = expected.spec
    if expected.size == 0 or spec.dtype not in FLOATING:
        return expected.size > 0 and is_same(data, unwritten(spec))
    if not all(np.isnan(got).all() for _, got in _parts(spec, data)):
        return False
    return not all(np.isnan(wanted).all() for _, wanted in _parts(spec, expected.data))


def mismatch(
    expected: Expected,
    data: Data,
    *,
    name: str = "output",
    allowed: Part | None = None,
    operands: Operands = tuple,
) -> str | None:
    """None when it agrees; else the first mismatch with statistics, in one line, and the pattern of
    what differs in a second one.

    Args:
        allowed: tolerances of another protocol.
        operands: what the output is made from, asked where it is wrong.
    """
    spec = expected.spec
    if expected.size == 0 or (allowed is None and _is_near(expected, data)):
        return None
    values, got = expected.values, decode(spec, data)
    with np.errstate(invalid="ignore"):
        difference = np.abs(got - values)
        agrees = difference <= (expected.allowed if allowed is None else allowed)
    special = ~np.isfinite(values)
    if special.any():
        agrees = np.where(special, _is_equal(got, values), agrees)
    if allowed is None and expected.limits is None:
        agrees = integers(spec, data) == integers(spec, expected.data)
        if difference.max() <= 1 and np.count_nonzero(~agrees) <= expected.num_rounded:
            return None
    if agrees.all():
        return None
    return mismatch_words(expected, data, ~agrees, name=name, operands=operands)


def _is_near(expected: Expected, data: Data) -> bool:
    """True if there is no mismatch, not even one of rounded integers."""
    spec, limits = expected.spec, expected.limits
    if limits is None:
        return is_same(data, expected.data)
    limit = BLOCK_ELEMENTS if expected.size < MIN_NEAR else NEAR_ELEMENTS
    pairs = zip(*(_parts(spec, one, limit=limit) for one in (data, expected.data)), strict=True)
    scratch = _scratch(spec, limit), _scratch(spec, limit)
    with np.errstate(invalid="ignore"):
        return all(
            _is_part_near(limits, block, got, wanted, scratch)
            for (block, got), (_, wanted) in pairs
        )


def _is_part_near(
    limits: Limits, block: Block, got: Part, wanted: Part, scratch: tuple[Part, Part]
) -> bool:
    """True if there is no mismatch in a block."""
    difference, below = (one[: got.size].reshape(got.shape) for one in scratch)
    np.abs(np.subtract(got, wanted, out=difference), out=difference)
    limits.below(block, wanted, out=below)
    if difference.max() < math.inf and bool((difference <= below).all()):  # all are finite
        return True
    near = difference <= limits.at(block, wanted)
    special = ~np.isfinite(wanted)
    if special.any():
        near = np.where(special, _is_equal(got, wanted), near)
    return bool(near.all())


def _is_equal(one: Part, other: Part) -> NDArray[np.bool_]:
    """True for each pair of equal elements; NaN equals NaN."""
    return (one == other) | (np.isnan(one) & np.isnan(other))
