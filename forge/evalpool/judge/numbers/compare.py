"""Comparison of an output with the reference, in numpy, on private copies of shared bytes.

Called by the judge on a CPU. The tolerance is that of tolerance.py, element by element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.numbers.tolerance import (
    ERROR_FACTOR,
    MIN_SENTINELS,
    families,
    floors_of,
    is_sentinel,
    tolerance,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forge.evalpool.judge.channel.shm import TensorSpec

NUMPY_TYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint8": np.uint8,
    "bool": np.uint8,
}
FLOATING = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
BLOCK_ELEMENTS = 1 << 15
"""Elements that are compared at once: 256 KiB an array of float64."""
UNWRITTEN_BYTE = 0xA5
"""Fills slots that have no NaN."""

Values = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One output of the reference, ready to compare with."""

    spec: TensorSpec
    values: NDArray[np.float64]
    """[shape] as float64; integers and bools too."""
    allowed: NDArray[np.float64]
    """[shape] largest accepted |got - ref|; 0 for integers."""
    integers: Values | None = None
    """[shape] in their own type: as float64 they are exact below 2^53 only."""

    @classmethod
    def make(cls, spec: TensorSpec, data: bytes, *, error: bytes, precision: str) -> Expected:
        """From the bytes that the oracle wrote; `error` in float32 has the own errors of each slab
        and perhaps its least scale (shares.py), or is empty where own errors are unknown."""
        values = decode(spec, data)
        if spec.dtype not in FLOATING:
            integers = _integers(spec, data)
            return cls(spec=spec, values=values, allowed=np.zeros_like(values), integers=integers)
        slabs = families(spec.shape)
        lost = np.frombuffer(error, np.float32).astype(np.float64)
        sizes = [int(np.prod([spec.shape[axis] for axis in axes])) for axes in slabs]
        num = sum(sizes)
        is_known = lost.size in (num, 2 * num)
        cuts = np.cumsum(sizes)[:-1]
        floors: Sequence[float | NDArray[np.float64]]
        floors = floors_of(spec.dtype, precision, spec.shape)
        if is_known and lost.size > num:
            floors = np.split(lost[num:], cuts)
        close = tolerance(spec.dtype, precision, is_error_known=is_known)
        errors = np.split(lost[:num], cuts) if is_known else []
        allowed = np.empty_like(values)
        with np.errstate(invalid="ignore"):
            scales = _scales(values, floors=floors, scratch=allowed)
            for rows in _row_blocks(spec.shape):
                part = allowed[rows]
                np.abs(values[rows], out=part)
                if scales:
                    part += _least(scales, spec.shape, rows)
                part *= close
                if errors:
                    part += ERROR_FACTOR * _least(errors, spec.shape, rows)
        return cls(spec=spec, values=values, allowed=allowed)


def _scales(
    values: NDArray[np.float64],
    *,
    floors: Sequence[float | NDArray[np.float64]],
    scratch: NDArray[np.float64],
) -> list[NDArray[np.float64]]:
    """Scales of tolerance.py, one vector a family; none where all is 0.

    Args:
        floors: least scales by family.
        scratch: [shape] is overwritten: fresh memory of a large tensor takes as long as all sums.
    """
    is_finite = np.isfinite(values)
    is_whole = bool(is_finite.all())  # then nothing needs to be counted
    finite = values if is_whole else np.where(is_finite, values, 0.0)
    sizes = np.abs(finite, out=scratch)
    largest = float(sizes.max(initial=0.0))
    if largest == 0.0:
        return []
    is_largest = sizes == largest
    count = int(np.count_nonzero(is_largest))
    rest = float(np.where(is_largest, 0.0, sizes).max()) if count >= MIN_SENTINELS else 0.0
    if is_sentinel(largest, rest, count):
        is_finite, is_whole, largest = is_finite & ~is_largest, False, rest
        finite = np.where(is_finite, finite, 0.0)
    squares = np.divide(finite, largest, out=sizes)
    np.square(squares, out=squares)
    number = values.size if is_whole else int(is_finite.sum())
    whole = float(np.sqrt(squares.sum() / max(1, number)))
    parts: list[NDArray[np.float64]] = []
    for axes, floor in zip(families(values.shape), floors, strict=True):
        others = tuple(axis for axis in range(values.ndim) if axis not in axes)
        known: Any = math.prod(values.shape[axis] for axis in others)
        if not is_whole:
            known = np.maximum(is_finite.sum(axis=others), 1)
        own = np.sqrt(squares.sum(axis=others) / known).reshape(-1)
        parts.append(largest * np.maximum(own, floor * whole))
    return parts


def _row_blocks(shape: tuple[int, ...]) -> Iterator[Any]:
    """Indices of a tensor's rows, as many at once as caches hold."""
    if not shape:
        yield ...
        return
    step = max(1, BLOCK_ELEMENTS // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        yield slice(start, start + step)


def _least(
    parts: list[NDArray[np.float64]], shape: tuple[int, ...], rows: Any
) -> NDArray[np.float64]:
    """The smallest value among an element's slabs, from one vector a family, for some rows."""
    least: NDArray[np.float64] | None = None
    for axes, part in zip(families(shape), parts, strict=True):
        wide = part.reshape([size if axis in axes else 1 for axis, size in enumerate(shape)])
        wide = wide[rows] if 0 in axes else wide
        least = wide if least is None else np.minimum(least, wide)
    assert least is not None
    return least


def decode(spec: TensorSpec, data: bytes | memoryview) -> NDArray[np.float64]:
    """Shared bytes as float64 of the tensor's shape."""
    if spec.dtype == "bfloat16":
        wide = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        return wide.astype(np.float64).reshape(spec.shape)
    if spec.dtype in NARROW:
        return NARROW[spec.dtype][np.frombuffer(data, np.uint8)].reshape(spec.shape)
    return np.frombuffer(data, NUMPY_TYPES[spec.dtype]).astype(np.float64).reshape(spec.shape)


def _e5m2() -> NDArray[np.float64]:
    """[256] values of float8_e5m2, which is the upper byte of float16."""
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float64)


def _e4m3() -> NDArray[np.float64]:
    """[256] values of float8_e4m3fn: its exponent's bias is 8 less than float16's, and of each sign
    the last value is NaN."""
    codes = np.arange(128, dtype=np.uint16)
    half = (codes << 7).view(np.float16).astype(np.float64) * 256
    half[-1] = np.nan
    return np.concatenate([half, -half])


NARROW = {"float8_e4m3fn": _e4m3(), "float8_e5m2": _e5m2()}
"""Value of each byte."""


def _integers(spec: TensorSpec, data: bytes) -> Values:
    return np.frombuffer(data, NUMPY_TYPES[spec.dtype]).reshape(spec.shape)


def unwritten(spec: TensorSpec) -> bytes:
    """Content of an output slot before the call: NaN, or a byte pattern for other types."""
    if spec.dtype in FLOATING:
        return b"\xff" * spec.num_bytes
    return bytes([UNWRITTEN_BYTE]) * spec.num_bytes


def is_unwritten(expected: Expected, data: bytes) -> bool:
    """True if the slot has nothing but what an unwritten one has, and the reference has more."""
    if expected.values.size == 0 or expected.spec.dtype not in FLOATING:
        return expected.values.size > 0 and data == unwritten(expected.spec)
    spec = expected.spec
    if not all(np.isnan(_decoded(spec, data, block)).all() for block in _blocks(spec)):
        return False
    return not np.isnan(expected.values).all()


def mismatch(expected: Expected, data: bytes, *, name: str = "output") -> str | None:
    """None when it agrees; else the first mismatch with statistics, in one line."""
    if expected.values.size == 0 or _is_near(expected, data):
        return None
    with np.errstate(invalid="ignore"):
        got = decode(expected.spec, data)
        difference = np.abs(got - expected.values)
        agrees = difference <= expected.allowed
    special = ~np.isfinite(expected.values)
    if special.any():
        same = (got == expected.values) | (np.isnan(got) & np.isnan(expected.values))
        agrees = np.where(special, same, agrees)
    exact, found = expected.values, got
    if expected.integers is not None:
        exact, found = expected.integers, _integers(expected.spec, data)
        agrees = found == exact
    if agrees.all():
        return None
    differs = ~agrees
    index = np.unravel_index(int(np.argmax(differs)), differs.shape)
    finite = difference[np.isfinite(difference)]
    return describe(
        index=tuple(int(i) for i in index),
        expected=exact[index].item(),
        got=found[index].item(),
        num_differing=int(np.count_nonzero(differs)),
        size=differs.size,
        largest=float(finite.max()) if finite.size else None,
        num_unset=int(np.count_nonzero(np.isnan(got) & ~np.isnan(expected.values))),
        name=name,
    )


def _is_near(expected: Expected, data: bytes) -> bool:
    """True if there is no mismatch. Looks at blocks that stay in the processor's caches: a fifth of
    the time for a tensor of 16 million elements."""
    spec = expected.spec
    if expected.integers is not None:
        return data == expected.integers.tobytes()
    values, allowed = expected.values.reshape(-1), expected.allowed.reshape(-1)
    for block in _blocks(spec):
        got, wanted = _decoded(spec, data, block), values[block]
        with np.errstate(invalid="ignore"):
            near = np.abs(got - wanted) <= allowed[block]
        special = ~np.isfinite(wanted)
        if special.any():
            same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
            near = np.where(special, same, near)
        if not near.all():
            return False
    return True


def _blocks(spec: TensorSpec) -> Iterator[slice]:
    """Elements of a tensor in order, as many as caches hold at once."""
    size = math.prod(spec.shape)
    return (slice(start, start + BLOCK_ELEMENTS) for start in range(0, size, BLOCK_ELEMENTS))


def _decoded(spec: TensorSpec, data: bytes, block: slice) -> NDArray[np.float64]:
    """Some elements of shared bytes, flat."""
    size = math.prod(spec.shape)
    width = len(data) // size
    part = replace(spec, shape=(min(block.stop, size) - block.start,))
    return decode(part, memoryview(data)[block.start * width : block.stop * width])


def describe(
    *,
    index: tuple[int, ...],
    expected: float,
    got: float,
    num_differing: int,
    size: int,
    largest: float | None,
    num_unset: int,
    name: str,
) -> str:
    """A mismatch in one line: where it is first, and how much of it there is."""
    where = f"{name}[{', '.join(map(str, index))}]" if index else name
    words = f"{where}: expected {_number(expected)}, got {_number(got)}"
    words += f"; {_percent(100.0 * num_differing / size)} of elements differ"
    if largest is not None:
        words += f", max abs error {largest:.3g}"
    if num_unset:
        words += f", {_percent(100.0 * num_unset / size)} are NaN"
    return words


def _number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _percent(share: float) -> str:
    if share >= 99.5 and share < 100:
        return ">99%"
    return f"{share:.0f}%" if share >= 1 else "<1%"
