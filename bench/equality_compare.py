"""Compares a card's output with the evaluator's, beside evaluations with errors.

An element may differ by FACTOR times the largest difference among those and one unit in the last
place of the output's type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.channel.values import FLOATING, NUMPY_TYPES, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from forge.evalpool.judge.channel.shm import TensorSpec

FACTOR = 4.0
"""Few samples seldom show the largest error."""
UNITS_OF_OUTPUT = {
    "float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2,
}  # fmt: skip
TYPICAL_SHARE = 0.5
"""Share of an output's median relative spread that each element has at least: of millions of
elements, the samples of some hardly differ."""
SMALLEST = 2.0**-126
"""Subnormal numbers may be flushed to zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A card's output beside the evaluator's."""

    num_elements: int
    num_equal: int
    """Equal to the last bit."""
    num_beyond: int
    """Differ by more than the model allows."""
    num_unstable: int
    """Integers that differ, within the samples of a value that errors change."""
    worst: float
    """Largest difference over what is allowed; integers: 0."""
    largest: float
    """Largest difference over the largest magnitude of the output."""
    first: str
    """The first element beyond."""


def compare(
    spec: TensorSpec, card: bytes, evaluated: bytes, samples: Sequence[bytes]
) -> Comparison:
    """One output; `samples` are those of the evaluations with errors."""
    if spec.dtype not in FLOATING:
        return _compare_integers(spec, card, evaluated, samples)
    got, base = decode(spec, card), decode(spec, evaluated)
    with np.errstate(all="ignore"):
        spread = np.zeros(base.shape)
        for one in samples:
            moved = decode(spec, one)
            away = np.where(_are_same(moved, base), 0.0, np.abs(moved - base))
            # An overflow that errors make or undo leaves no bound.
            spread = np.maximum(spread, np.where(np.isnan(away), np.inf, away))
        spread = np.maximum(spread, TYPICAL_SHARE * _typical(spread, base) * np.abs(base))
        allowed = FACTOR * spread + UNITS_OF_OUTPUT[spec.dtype] * np.abs(base) + SMALLEST
        difference = np.abs(got - base)
        is_free = np.isinf(spread) | _are_same(got, base)
        ratio = np.where(is_free, 0.0, difference / allowed)
    beyond = ~(ratio <= 1.0)
    scale = float(np.abs(base[np.isfinite(base)]).max(initial=0.0)) or 1.0
    finite = difference[np.isfinite(difference)]
    return Comparison(
        num_elements=base.size,
        num_equal=int(_bits_equal(spec, card, evaluated)),
        num_beyond=int(beyond.sum()),
        num_unstable=0,
        worst=_largest(ratio),
        largest=float(finite.max(initial=0.0)) / scale,
        first=_first(beyond, base, got, allowed),
    )


def _compare_integers(
    spec: TensorSpec, card: bytes, evaluated: bytes, samples: Sequence[bytes]
) -> Comparison:
    kind = NUMPY_TYPES[spec.dtype]
    got, base = (np.frombuffer(one, kind).reshape(spec.shape) for one in (card, evaluated))
    moved = [np.frombuffer(one, kind).reshape(spec.shape) for one in (evaluated, *samples)]
    low, high = np.min(moved, axis=0), np.max(moved, axis=0)
    differs = got != base
    is_unstable = differs & (low != high)
    beyond = differs & ~is_unstable
    return Comparison(
        num_elements=base.size,
        num_equal=int(np.count_nonzero(~differs)),
        num_beyond=int(np.count_nonzero(beyond)),
        num_unstable=int(np.count_nonzero(is_unstable)),
        worst=0.0,
        largest=0.0,
        first=_first(beyond, base, got, np.zeros(base.shape)),
    )


def _typical(spread: Any, base: Any) -> float:
    """Median of the relative spread."""
    relative = spread / np.abs(base)
    finite = relative[np.isfinite(relative)]
    return float(np.median(finite)) if finite.size else 0.0


def _are_same(one: Any, other: Any) -> Any:
    return (one == other) | (np.isnan(one) & np.isnan(other))


def _bits_equal(spec: TensorSpec, card: bytes, evaluated: bytes) -> int:
    size = max(1, spec.num_bytes // max(1, int(np.prod(spec.shape, dtype=np.int64))))
    pairs = [np.frombuffer(one, np.uint8).reshape(-1, size) for one in (card, evaluated)]
    return int((pairs[0] == pairs[1]).all(axis=1).sum()) if spec.num_bytes else 0


def _largest(ratio: NDArray[np.float64]) -> float:
    """Infinite where an element is NaN or infinite on one side alone."""
    if ratio.size == 0:
        return 0.0
    return float(np.where(np.isnan(ratio), np.inf, ratio).max())


def _first(beyond: Any, base: Any, got: Any, allowed: Any) -> str:
    if not beyond.any():
        return ""
    place = np.unravel_index(int(np.argmax(beyond)), beyond.shape)
    index = [int(one) for one in place]
    numbers = f"evaluator {base[place].item()!r}, card {got[place].item()!r}"
    return f"{index}: {numbers}, allowed {float(allowed[place]):.3g}"
