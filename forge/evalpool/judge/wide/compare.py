# pyright: strict
"""Question 1's and question 2's comparison of an output with the reference, on either device.

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
or more and all others are 1,000 times smaller. No other terms.

The formulas are those of numpy, for an output in the host's memory, and of torch, for one on a
card. What waits for the card: `agree`, once for all outputs of several calls and once for each
large one; scales, once a draw; and the words for an output that differs. Blocks bound the memory;
what depends on the reference alone is computed once a draw.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from forge.evalpool.judge.channel import shm
from forge.evalpool.judge.numbers.called import CHUNK, Block, blocks, dtype_name, limit_on
from forge.evalpool.judge.numbers.protocols import PRECISION, TOLERANCE
from forge.evalpool.judge.wide.patterns import Operands, Values, describe, words_of

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
"""Elements of the host's that are computed at once: 256 KiB, within the processor's caches."""
LOOKED_AT = 1 << 22
"""Elements of a block from which on it pays to wait for a card."""
EXACT, SURE = ("float32", "float64"), 1 - 2.0**-20
"""Types whose differences are computed in them, and the share of a tolerance that leaves room for
their roundings."""
MAX_MASK = 1 << 26
"""Elements of an output of which a pattern is looked for, by a mask of what differs."""

Mask = NDArray[np.bool_]
Array: TypeAlias = Any
"""An array of numpy, or a tensor on a card."""


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
    is_partial: bool = False
    """True if elements say nothing that are not finite on either side."""

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


class Bytes:
    xp: Any = np

    def __init__(self, spec: shm.TensorSpec, data: shm.Data) -> None:
        self.shape, self.dtype, self._spec, self._data = spec.shape, spec.dtype, spec, data

    def parts(self) -> Iterator[tuple[Block, Array]]:
        """Blocks of [rows along the last axis, columns] in order, each with its elements in float64
        in memory that the next one overwrites."""
        scratch, start = np.empty(min(math.prod(self.shape), BLOCK_ELEMENTS)), 0
        for block in blocks(matrix_of(self.shape), BLOCK_ELEMENTS) if len(scratch) else ():
            shape = [one.stop - one.start for one in block]
            part = scratch[: math.prod(shape)]
            shm.decode_part(self.dtype, self._data, start=start, target=part)
            yield block, part.reshape(shape)
            start += len(part)

    def whole(self) -> Array:
        """[shape] integers; of booleans their bytes, since one that nothing wrote is no truth."""
        return shm.integers(self._spec, self._data)

    def numbers(self) -> Array:
        """[shape] in float64."""
        return shm.decode(self._spec, self._data)

    def zeros(self, shape: tuple[int, ...], *, is_mask: bool = False) -> Array:
        """Zeros in float64, or a mask."""
        return np.zeros(shape, np.bool_ if is_mask else np.float64)

    def are_all(self, flags: Array) -> bool:
        """True if all are known to be True; a card is not waited for where that takes longer."""
        return bool(flags.all())

    def take(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """Elements by their number in memory's order, in float64."""
        return Values.of_bytes(self._spec, self._data).take(places)

    def number(self, place: int) -> float:
        """One element; an integer is exact."""
        if self.dtype in shm.FLOATING:
            return float(self.take(np.array([place]))[0])
        return self.whole().flat[place].item()


class OnCard:
    xp: Any = torch

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self._tensor = tuple(tensor.shape), dtype_name(tensor), tensor

    def parts(self) -> Iterator[tuple[Block, torch.Tensor]]:
        if self._tensor.numel():
            found, shape = self.whole(), matrix_of(self.shape)
            for block in blocks(shape, limit_on(found.device)):
                yield block, found.reshape(shape)[block].double()

    def whole(self) -> torch.Tensor:
        """[shape] in its own type; of booleans their bytes."""
        found = self._tensor.contiguous()
        return found.view(torch.uint8) if found.dtype is torch.bool else found

    def numbers(self) -> torch.Tensor:
        return self._tensor.double()

    def zeros(self, shape: tuple[int, ...], *, is_mask: bool = False) -> torch.Tensor:
        kind = torch.bool if is_mask else torch.float64
        return torch.zeros(shape, dtype=kind, device=self._tensor.device)

    def are_all(self, flags: torch.Tensor) -> bool:
        """True if all are known to be True: a large block is looked at, which saves some passes."""
        return flags.numel() >= LOOKED_AT and bool(flags.all())

    def farthest(self, other: OnCard) -> torch.Tensor:
        """[blocks] the largest difference from another tensor of this type in float64, a rounding
        off; NaN where an element has none."""
        one, two = self.whole().view(-1), other.whole().view(-1)
        ends = [
            torch.stack(torch.aminmax(one[at : at + CHUNK] - two[at : at + CHUNK])).double()
            for at in range(0, len(one), CHUNK)
        ]
        return torch.stack(ends).abs_().amax(1)

    def take(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        index = torch.as_tensor(places.reshape(-1), device=self._tensor.device)
        return self._tensor.reshape(-1)[index].double().cpu().numpy().reshape(places.shape)

    def number(self, place: int) -> float:
        return self.whole().reshape(-1)[place].item()


Elements: TypeAlias = Bytes | OnCard


def matrix_of(shape: Sequence[int]) -> tuple[int, int]:
    last, size = (shape[-1] if shape else 1), math.prod(shape)
    return (size // last if last else 0, last)


@dataclass(slots=True, kw_only=True)
class Wanted:
    """One output of the reference under a question. Safe in several threads."""

    values: Elements
    """Nobody may write to it."""
    question: Question
    exact: Wanted | None = None
    """The same output by float64: eager's own roundings are no demand in question 2, where an
    element may be as near to this one, or the same integer."""
    _scales: tuple[Array, Array] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def scales(self) -> tuple[Array, Array]:
        """The scale of each row, and of each column, computed once."""
        with self._lock, np.errstate(invalid="ignore"):
            if self._scales is None:
                self._scales = _scales(self.values, self.question)
            return self._scales

    def differing(self, got: Elements) -> Array:
        """[shape] True where an output differs, still on the card."""
        if self.values.dtype == "bool" or not (self._is_float or self.question.is_close):
            differs = got.whole() != self.values.whole()
            if self.exact is not None:
                differs &= got.whole() != self.exact.values.whole()
            return differs
        found = got.zeros(matrix_of(self.values.shape), is_mask=True)
        sides = [self] if self.exact is None else [self, self.exact]
        every = zip(got.parts(), *(one.values.parts() for one in sides), strict=True)
        with np.errstate(invalid="ignore"):
            for (block, part), *others in every:
                is_far = self._is_far(block, part, others[0][1])
                for one, (_, exact) in zip(sides[1:], others[1:], strict=True):
                    if not got.are_all(~is_far):
                        is_far &= one._is_far(block, part, exact)
                found[block] = is_far
        return found.reshape(self.values.shape)

    def _is_far(self, block: Block, got: Array, expected: Array) -> Array:
        xp, tolerance = self.values.xp, self.question.tolerance
        difference = got - expected
        xp.abs(difference, out=difference)
        if self.question.is_close:
            is_near = (difference <= tolerance + tolerance * abs(got)) & xp.isfinite(got)
            return ~(is_near | (got == expected))
        rows, columns = self.scales
        allowed = abs(expected)
        allowed += xp.minimum(rows[block[0]][:, None], columns[block[1]])
        allowed *= tolerance
        is_near = difference <= allowed
        if self.values.are_all(is_near & xp.isfinite(difference)):
            return ~is_near
        is_equal = (got == expected) | (xp.isnan(got) & xp.isnan(expected))
        if self.question.is_partial:
            return ~(is_near | ~xp.isfinite(difference))
        return ~xp.where(xp.isfinite(expected), is_near, is_equal)

    @property
    def _is_float(self) -> bool:
        return self.values.dtype in shm.FLOATING

    def is_near(self, got: Elements) -> bool:
        """True if a large output on a card surely agrees: it is nowhere farther away than the least
        that an element may be. Most right ones are so near, and all else takes four times as many
        passes. Waits for the card."""
        right, size = self.values, math.prod(self.values.shape)
        if not isinstance(got, OnCard) or not isinstance(right, OnCard) or size < LOOKED_AT:
            return False
        if right.dtype not in EXACT or got.dtype != right.dtype or self.question.is_close:
            return False
        rows, columns = self.scales
        least = torch.minimum(rows.min(), columns.min()) * (self.question.tolerance * SURE)
        return bool((right.farthest(got) <= least).all())

    def allows(self, differs: Array, got: Elements) -> Array:
        """True if the elements that differ, [shape], may do so, still on the card."""
        if self._is_float:
            return ~differs.any()
        steps = got.zeros(self.values.shape, is_mask=True)
        if self.values.dtype in QUANTISED:
            steps = abs(got.numbers() - self.values.numbers()) <= 1
        return self.question.allows(differs, steps)


def agree(pairs: Sequence[tuple[OnCard, Wanted]]) -> list[bool]:
    """For each output and the expected one, True if it agrees. Waits for the card once, and for
    each large output."""
    are_near = [wanted.is_near(got) for got, wanted in pairs]
    left = [one for one, is_near in zip(pairs, are_near, strict=True) if not is_near]
    flags = [wanted.allows(wanted.differing(got), got) for got, wanted in left]
    found = iter(torch.stack(flags).cpu().numpy() if flags else ())
    return [is_near or bool(next(found)) for is_near in are_near]


def mismatch(
    wanted: Wanted, got: Elements, *, name: str = "output", operands: Operands = tuple
) -> tuple[str, Mask | None] | None:
    """None where an output agrees; else what differs first and the pattern of it, in words, and
    [shape] True for each element that differs; None of a large output.

    Args:
        operands: what the output is made from, asked where it is wrong.
    """
    if wanted.is_near(got):
        return None
    differs, right = wanted.differing(got), wanted.values
    if bool(wanted.allows(differs, got)):
        return None
    flat, starts = differs.reshape(-1), range(0, math.prod(differs.shape), MAX_MASK)
    start = next(one for one in starts if bool(flat[one : one + MAX_MASK].any()))
    part = flat[start : start + MAX_MASK]
    mask: Mask = np.asarray(part if right.xp is np else part.cpu().numpy())
    first = start + int(mask.argmax())
    pair = right.number(first), got.number(first)
    if len(starts) > 1:  # a card's mask of gigabytes stays there; torch adds its bits as int64
        num = sum(int(flat[one : one + MAX_MASK].sum()) for one in starts)
        return describe(first, pair, differs.shape, num, name=name), None
    mask = mask.reshape(differs.shape)
    expected, values = values_of(right, name=name), values_of(got, name=name)
    return words_of(expected, values, mask, pair=pair, name=name, operands=operands), mask


def values_of(elements: Elements, *, name: str = "output") -> Values:
    """A tensor whose elements are read where they are needed."""
    return Values(shape=elements.shape, take=elements.take, dtype=elements.dtype, name=name)


def is_unwritten(got: Elements, expected: Elements) -> bool:
    """True if a floating output is all NaN though the reference is not."""
    is_float = got.dtype in shm.FLOATING and math.prod(expected.shape) > 0
    return is_float and _is_all_nan(got) and not _is_all_nan(expected)


def _is_all_nan(one: Elements) -> bool:
    return all(bool(one.xp.isnan(part).all()) for _, part in one.parts())


def _scales(values: Elements, question: Question) -> tuple[Array, Array]:
    xp, shape = values.xp, matrix_of(values.shape)
    largest = _largest(values, math.inf)
    below = _largest(values, largest / 2) if largest >= LEAST_SENTINEL else largest
    is_sentinel = (largest >= LEAST_SENTINEL) & (below > 0) & (below < SENTINEL_RATIO * largest)
    most = xp.where(is_sentinel, below, largest)
    unit = xp.where(most > 0, most, 1.0)
    totals, counts = ([values.zeros((n,)) for n in shape] for _ in range(2))
    for block, part in values.parts():
        size = abs(part)
        counted = size <= most  # false for NaN
        square = xp.where(counted, size / unit, 0.0) ** 2
        for axis in (0, 1) if question.is_same else (0,):
            totals[axis][block[axis]] += square.sum(1 - axis)
            counts[axis][block[axis]] += counted.sum(1 - axis)
    whole = unit * (totals[0].sum() / counts[0].sum().clip(min=1.0)) ** 0.5
    if not question.is_same:
        return values.zeros((shape[0],)) + whole, values.zeros((shape[1],)) + whole
    rms = [unit * (totals[n] / counts[n].clip(min=1.0)) ** 0.5 for n in (0, 1)]
    return xp.maximum(rms[0], LEAST_SCALE * whole), xp.maximum(rms[1], LEAST_SCALE * whole)


def _largest(values: Elements, limit: Array) -> Array:
    """Largest magnitude below a limit; 0 if there is none."""
    xp, found = values.xp, values.zeros(())
    for _, part in values.parts():
        size = abs(part)
        found = xp.maximum(found, xp.where(size < limit, size, 0.0).max())
    return found
