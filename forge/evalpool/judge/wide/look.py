"""An output that differs, with what a kernel may have made it from: elements where they are needed.

Used by patterns.py, whose hypotheses read a sample of the elements that differ and some lines.
Nothing here takes longer for a larger output, but for the mask of what differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.channel.regions import Region, region_of
from forge.evalpool.judge.channel.shm import ITEM_BYTES, decode_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from forge.evalpool.judge.channel.shm import Data, TensorSpec

NUM_SAMPLES = 1024
"""Elements that a hypothesis is tried on."""
NUM_LINES, MAX_LINE = 16, 4096
"""Rows or columns that are looked at, and their longest."""
SHARE, RESIDUE, CLOSE = 0.95, 0.05, 0.01
NOISE = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}
"""Rounding of a type, relative to the element and the output's rms."""
MIN_SAMPLES = 8
MAX_SHARE = 0.5
"""Most elements that may differ for a plant to be named beside them."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, without their whole part, are spread evenly and in step with nothing."""

Part: TypeAlias = NDArray[Any]
Indices: TypeAlias = NDArray[np.int64]
Operands: TypeAlias = "Callable[[], Sequence[Values]]"
RAW: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def rms_of(values: Part) -> float:
    """Root mean square, 0 of none."""
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    return largest * math.sqrt(float(np.mean(np.square(values / largest)))) if values.size else 0.0


def spread(size: int, most: int) -> Indices:
    """All of the numbers below `size`, or so many of them."""
    if size <= most:
        return np.arange(size, dtype=np.int64)
    return (np.arange(most) * GOLDEN % 1 * size).astype(np.int64)


def is_near(found: Part, wanted: Part, allowed: Part, *, share: float = SHARE) -> bool:
    """True if a share of values are no farther from others than is allowed."""
    near = np.abs(wanted - found) <= allowed
    return int(np.count_nonzero(near)) >= share * near.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """A tensor whose elements are read where they are needed."""

    shape: tuple[int, ...]
    take: Callable[[Indices], Part]
    """Elements by their number in memory's order."""
    dtype: str = "float32"
    name: str = "output"

    @classmethod
    def of_bytes(cls, spec: TensorSpec, data: Data, *, name: str = "output") -> Values:
        """The elements of a tensor's bytes."""
        if ITEM_BYTES[spec.dtype] not in RAW:
            return cls(shape=spec.shape, take=lambda found: np.full(found.shape, np.nan))
        raw: NDArray[Any] = np.frombuffer(data, RAW[ITEM_BYTES[spec.dtype]])

        def take(found: Indices) -> Part:
            values = np.empty(found.size)
            chosen = raw[found.reshape(-1)].tobytes()
            with np.errstate(invalid="ignore"):  # a signalling NaN
                decode_part(spec.dtype, chosen, start=0, target=values)
            return values.reshape(found.shape)

        return cls(shape=spec.shape, take=take, dtype=spec.dtype, name=name)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def lines(self, axis: int, numbers: Indices) -> Indices:
        """[len(numbers), length] the elements of lines along an axis, up to MAX_LINE of each."""
        inner = math.prod(self.shape[axis + 1 :])
        length = self.shape[axis]
        starts = numbers // inner * (inner * length) + numbers % inner
        return starts[:, None] + np.arange(min(length, MAX_LINE), dtype=np.int64) * inner

    def some(self) -> Indices:
        """Up to 2 · NUM_SAMPLES elements all over the tensor."""
        return spread(self.size, 2 * NUM_SAMPLES)

    def some_lines(self, axis: int) -> Indices:
        """Up to NUM_LINES of them, all over the tensor."""
        num = self.size // max(1, self.shape[axis])
        numbers = np.unique(np.linspace(0, num - 1, min(num, NUM_LINES)).astype(np.int64))
        return self.lines(axis, numbers)


@dataclass(slots=True, kw_only=True)
class Look:
    """An output that differs, with what a kernel may have made it from."""

    expected: Values
    got: Values
    region: Region | None
    """The part that differs; None for all of it."""
    share: float
    """Share of the elements that differs."""
    places: Indices
    """A sample of the elements that differ."""
    operands: Sequence[Values] = ()
    """Inputs, then parameters."""
    e: Part = field(init=False)
    g: Part = field(init=False)
    """Expected and got, at `places`."""
    bad: Indices = field(init=False)
    """Elements of the sample at which got is not finite though expected is."""
    noise: Part = field(init=False)
    allowed: Part = field(init=False)
    """Largest distance of got from what a hypothesis says, at `places`."""

    def __post_init__(self) -> None:
        self.e, self.g = self.expected.take(self.places), self.got.take(self.places)
        is_finite = np.isfinite(self.e) & np.isfinite(self.g)
        self.bad = self.places[np.isfinite(self.e) & ~np.isfinite(self.g)]
        self.places, self.e, self.g = (one[is_finite] for one in (self.places, self.e, self.g))
        self.noise = self.noise_of(self.e)
        self.allowed = self._allowed(self.e, self.g)

    @property
    def shape(self) -> tuple[int, ...]:
        """The output's."""
        return self.expected.shape

    @property
    def rounding(self) -> float:
        """Relative error of the output's type, and of constants in float32."""
        return max(1e-5, NOISE.get(self.got.dtype, 0.0))

    def noise_of(self, values: Part) -> Part:
        """The error by rounding alone of values of this output."""
        noise = NOISE.get(self.got.dtype, 1e-12)
        return noise * np.abs(values) + noise * rms_of(values)

    def fits(self, found: Part) -> bool:
        """True if the output is what a hypothesis says, where it differs."""
        return self.g.size > 0 and is_near(found, self.g, self.allowed)

    def fit(self, e: Part, g: Part, found: Part) -> bool:
        """The same for other elements than the sample's."""
        return g.size > 0 and is_near(found, g, self._allowed(e, g))

    def _allowed(self, e: Part, g: Part) -> Part:
        most = np.minimum(RESIDUE * np.abs(g - e), CLOSE * (np.abs(g) + rms_of(g)))
        return most + np.minimum(self.noise_of(e), self.noise_of(g))

    def alike(self) -> Iterator[Values]:
        """Inputs of the output's shape."""
        return (one for one in self.operands if one.shape == self.shape)

    def is_where(self) -> str:
        """The sign of an input that all elements have which differ, and others have not."""
        for values in self.alike() if len(self.g) >= MIN_SAMPLES else ():
            x, whole = values.take(self.places), values.take(self.expected.some())
            for sign, found, all_ in (
                ("positive", x > 0, whole > 0),
                ("negative", x <= 0, whole <= 0),
            ):
                most = float(np.mean(all_))
                if found.all() and 0.2 < most < 0.8 and self.share > 0.7 * most:
                    return f"wrong only where {values.name} is {sign}"
        return ""


def look(
    mask: NDArray[np.bool_],
    expected: Values,
    got: Values,
    *,
    operands: Sequence[Values] = (),
) -> Look:
    """An output whose elements differ where a mask says so."""
    found = np.flatnonzero(mask)
    found = found[spread(len(found), NUM_SAMPLES)]
    return Look(
        expected=expected, got=got, region=region_of(mask), places=found.astype(np.int64),
        share=float(mask.mean()),
        operands=operands,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plant:
    """One element of an input that a set replaces."""

    position: int
    """Number of the input among the tensors of the arguments."""
    index: int
    """Number of the element in the flat tensor."""
    kind: str


FAR = frozenset(
    {"large", "beyond", "far constant", "large row", "grown row", "lowered row", "raised row"}
)
"""Kinds of plants far beyond other values."""


def are_far(plants: Iterable[Plant]) -> bool:
    """True if one is far beyond other values. Question 2 is asked on one such set at most, with a
    large tolerance: a variance in one pass loses there what no kernel need keep."""
    return not FAR.isdisjoint(one.kind for one in plants)


def plant_words(
    plants: Sequence[Plant], operands: Sequence[Values], differs: NDArray[np.bool_]
) -> str:
    """The plant beside which an output differs, where most of it does not: that of an element that
    differs, or of its row."""
    if not differs.ndim or differs.mean() > MAX_SHARE:
        return ""
    rows = {int(row) for row in np.flatnonzero(differs.reshape(len(differs), -1).any(axis=1))}
    for is_near in (False, True):
        for plant in plants:
            values = operands[plant.position]
            index = tuple(int(at) for at in np.unravel_index(plant.index, values.shape))
            is_alike = values.shape == differs.shape and bool(differs[index])
            is_row = is_near and values.shape[:1] == differs.shape[:1] and index[0] in rows
            if is_alike or is_row:
                value = float(values.take(np.array([plant.index]))[0])
                return f"there, input {plant.position}{[*index]} is {value:.6g} ({plant.kind})"
    return ""
