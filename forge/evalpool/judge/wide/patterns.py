"""Names the pattern of a wrong output: the first that explains it, in one or two lines.

Called where an output differs, by the comparisons of both devices. A pattern is a hypothesis: a
formula for what the kernel may have computed, from the expected output and the inputs. It holds
where the output is no farther from it than 1/20 of its error and 1/100 of its size, at 95 of 100
elements that differ, of a sample: only the mask of what differs takes longer for a larger output.
Nothing here decides a verdict.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations, product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.channel.regions import Region, region_of
from forge.evalpool.judge.channel.shm import ITEM_BYTES, Data, TensorSpec, decode_part

logger = logging.getLogger(__name__)

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
    shape: tuple[int, ...]
    take: Callable[[Indices], Part]
    """Elements by their number in memory's order."""
    dtype: str = "float32"
    name: str = "output"

    @classmethod
    def of_bytes(cls, spec: TensorSpec, data: Data, *, name: str = "output") -> Values:
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
    mask: NDArray[np.bool_], expected: Values, got: Values, *, operands: Sequence[Values] = ()
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


# --- patterns

BLOCK_ELEMENTS = 1 << 16
"""Elements whose errors are computed at once."""
FEW = 32
"""Elements that a function is tried on before all of a sample: most functions are others."""
MAX_REDUCED = 1 << 18
"""Elements of an input that is reduced as a whole."""


def pattern(one: Look) -> str:
    """The first pattern that explains an output, in a line; empty if none does."""
    with np.errstate(all="ignore"):
        if len(one.bad):
            return _not_finite(one)
        finds = PATTERNS if len(one.g) >= MIN_SAMPLES else ()
        return next((words for find in finds if (words := find(one))), "")


def _not_finite(one: Look) -> str:
    """NaN or infinities where the reference has none."""
    last = len(one.shape) - 1
    for values in one.alike() if one.shape else ():
        rows = np.unique(one.bad // one.shape[last])[:64]
        lines, x = values.take(values.lines(last, rows)), values.take(one.bad)
        where = f"NaN or inf only where {values.name} is"
        if np.ptp(lines, axis=1).max() <= 1e-6 * np.abs(lines).max():
            return (
                f"NaN or inf only where all of a row of {values.name} is equal: its variance is 0"
                " and something is divided by it; is an epsilon left out?"
            )
        if (least := float(np.abs(lines).max(axis=1).min())) > 80:
            return (
                f"NaN or inf only in rows where |{values.name}| reaches {least:.3g} or more: exp"
                " overflows; subtract the row's maximum first"
            )
        if (x == 0).all():
            return f"{where} 0: a division by 0, or a log of it"
        if (x < 0).all():
            return f"{where} negative: a root or a log of it"
    return "NaN or inf where the reference has none: never written, 0/0 or an overflow"


# --- one formula for all elements


def _constant(one: Look) -> str:
    if 0 < rms_of(one.g) < 1e-6 * rms_of(one.e):
        return "every element that differs is nearly 0"
    value = float(np.median(one.g))
    if np.mean(one.g == value) < SHARE or np.ptp(one.e) == 0:
        return ""
    whole = one.got.take(one.expected.some())
    is_reduced = value == 0 and not any(one.alike())
    for sign, side, inf in ((1, "below", "-inf"), (-1, "above", "inf")):
        is_bound = (sign * (whole - value) >= 0).all() and np.ptp(whole) > 0
        if is_bound and np.mean(sign * (one.e - value) < 0) >= SHARE:
            padded = f": does a masked lane count as 0? load it with other={inf}" * is_reduced
            return f"got is never {side} {value:.4g}, as if clamped{padded}"
    words = f"every element that differs is {value:.4g}: is it computed and stored at all?"
    return (is_reduced and _reduced(one)) or words


def _scaled(one: Look) -> str:
    """One factor or one offset for all."""
    if one.share < 0.5 and not one.region and not one.is_where():
        return ""
    if one.fits(-one.e):
        return "every element that differs has the other sign"
    factor = float(np.median(one.g / one.e))
    if one.fits(factor * one.e) and np.ptp(one.e) > 0:
        meaning = "" if one.is_where() else _meaning(one, factor)
        return (not meaning and _lines(one)) or f"got = {factor:.6g} · expected{meaning}"
    offset = float(np.median(one.g - one.e))
    if one.fits(one.e + offset):
        return f"got = expected {'+' if offset > 0 else '-'} {abs(offset):.6g}, everywhere"
    return ""


def _meaning(one: Look, factor: float) -> str:
    """The origin that a factor may have."""
    if not 1e-9 < abs(factor) < 1e9:
        return ""
    ratio = max(abs(factor), 1 / abs(factor))
    for size in (size for one in (one.expected, *one.operands) for size in one.shape if size > 2):
        padded = 1 << (size - 1).bit_length()
        for power, name in ((1.0, ""), (0.5, "the root of ")):
            if padded > size and abs(ratio / (padded / size) ** power - 1) < 1e-4:
                within = " under a root" * bool(name)
                return f": {size} elements are divided by {padded}{within}, or the other way round"
            if abs(ratio / size**power - 1) < 1e-4:
                return f": {name}{size}, the size of a dimension, is missing or once too often"
            if abs(ratio * (1 - 1 / size) ** power - 1) < 1e-6:
                return f": {name}{size} in place of {size - 1}, or the other way round"
    if abs(ratio - round(ratio)) < 1e-4 and ratio > 1.5:
        return ": something is added once too often, or is not reset" if factor > 1 else ""
    for name, value in (("ln 2", math.log(2)), ("log2 e", math.log2(math.e)), ("pi", math.pi)):
        if abs(factor / value - 1) < 1e-4:
            return f": {name}"
    return ""


def _of_operand(one: Look) -> str:
    """An input or parameter itself, or one that is added or multiplied once too often or not at
    all. A vector counts along each dimension of its length."""
    at = np.unravel_index(one.places, one.shape or (1,))
    for values in one.operands:
        axes = [a for a, size in enumerate(one.shape) if values.shape == (size,) and size > 1]
        for own, other in permutations(axes, 2):
            a, b = (values.take(np.asarray(at[axis], np.int64)) for axis in (own, other))
            if one.fits(one.e - a + b) or one.fits(one.e / a * b):
                return f"got has {values.name} along dimension {other}, expected along {own}"
        found = [one.places] if values.shape == one.shape else [at[axis] for axis in axes]
        for x in (values.take(np.asarray(each, np.int64)) for each in found):
            if not np.ptp(x):
                continue
            if one.fits(x):
                return f"got is {values.name}, unchanged"
            for made, sign, words in (
                (one.e - x, "minus", "it is not added, or subtracted once too often"),
                (one.e + x, "plus", "it is added once too often"),
                (one.e * x, "·", "it is multiplied once too often"),
                (one.e / x, "/", "it is not multiplied"),
            ):
                if one.fits(made):
                    return f"got = expected {sign} {values.name}: {words}"
    return ""


def _moved(one: Look) -> str:
    """Elements of the expected output at other places: transposed, or shifted by one."""
    at, axes = np.array(np.unravel_index(one.places, one.shape or (1,))), range(len(one.shape))

    def fits(places: NDArray[Any]) -> bool:
        flat = np.ravel_multi_index(tuple(places), one.shape)
        return one.fits(one.expected.take(np.asarray(flat, np.int64)))

    for a, b in combinations(axes, 2):
        turned = at.copy()
        turned[[a, b]] = at[[b, a]]
        if one.shape[a] == one.shape[b] and fits(turned):
            return f"got is expected with dimensions {a} and {b} exchanged (transposed)"
    for axis, step in product(axes, (1, -1)):
        moved = at.copy()
        moved[axis] = (at[axis] + step) % one.shape[axis]
        if fits(moved):
            side = "the next" if step > 0 else "the one before"
            return (
                f"along dimension {axis} each element is {side} of expected: shifted by one"
                " (an index off by one, or exclusive for inclusive)"
            )
    return ""


# --- rows: a factor or an offset of its own for each


def _lines(one: Look) -> str:
    """Each row or column off by its own factor or offset, and by which statistic of the input."""
    for axis in reversed(range(len(one.shape))):
        length = one.shape[axis]
        if length < 4 or one.expected.size == length:
            continue
        places = one.expected.some_lines(axis)
        e, g = one.expected.take(places), one.got.take(places)
        differs = np.abs(g - e) > one.noise_of(e)
        chosen = (differs.mean(axis=1) > 0.3) & np.isfinite(g).all(axis=1)
        if chosen.sum() < 2:
            continue
        places, e, g = places[chosen], e[chosen], g[chosen]
        name = ("column", "row")[axis] if len(one.shape) == 2 else f"line along dimension {axis}"
        # Inputs and parameters of one axis may be added at the end of each line.
        is_last = axis == len(one.shape) - 1
        vectors = [values for values in one.operands if is_last and values.shape == (length,)]
        bases = [values.take(np.arange(length, dtype=np.int64)) for values in vectors]
        for base in (np.zeros(length), *bases):
            base = base[: e.shape[1]]
            ratio = (g - base) / (e - base)
            factor = np.median(np.where(np.isfinite(ratio), ratio, 1.0), axis=1)
            differ = base.any() or np.ptp(factor) > one.rounding * np.abs(factor).max()
            if differ and one.fit(e, g, base + factor[:, None] * (e - base)):
                words = f"each {name} is off by a factor of its own"
                words += f", {factor.min():.6g} to {factor.max():.6g}"
                words += " (but for what is added at the end)" if base.any() else ""
                return f"{words}: {_statistic(one, places, factor)}"
        offset = np.median(g - e, axis=1)
        if one.fit(e, g, e + offset[:, None]):
            words = f"each {name} is off by an offset of its own"
            return f"{words}, {offset.min():.4g} to {offset.max():.4g}: its mean, sum or maximum?"
    return ""


def _statistic(one: Look, places: Indices, factor: Part) -> str:
    """The statistic of a line of the input that explains its factor."""
    length = places.shape[1]
    for x in (values.take(places) for values in one.alike() if length < MAX_LINE):
        sum_exp = np.exp(x).sum(axis=1)
        for found in ((1 / factor - 1) * sum_exp, (1 / factor - 1) * sum_exp / np.exp(x.max(1))):
            count = float(np.median(found))
            if _is_one(found) and count > 0.5 and abs(count - round(count)) < 0.02 * count:
                return (
                    f"as if {round(count)} masked lanes counted as 0 in each sum of exp: load them"
                    " with other=-inf"
                )
        for kind, total in (("sum of exp", np.exp(x)), ("sum", x), ("sum of squares", x * x)):
            partial = np.cumsum(total, axis=1)
            for wanted in (partial[:, -1] / factor, partial[:, -1] / factor**2):
                if num := _prefix(partial, wanted):
                    return f"as if each {kind} had {num} of {length} elements: a remainder is lost"
        for kind, own in (("variance", x.var(axis=1)), ("mean of squares", (x * x).mean(axis=1))):
            if words := _norm_words(one, x, kind, own, own / factor**2):
                return words
    return "is a statistic of it wrong (sum, mean, variance, maximum), by masked lanes?"


def _norm_words(one: Look, x: Part, kind: str, own: Part, other: Part) -> str:
    """How the power that rows are divided by the root of differs from what it should be."""
    length, added, share = x.shape[1], other - own, float(np.median(other / own))
    if _is_one(other / own, 1e-4) and _is_one(added / own):
        means = _meaning(one, share) or _meaning(one, share**-0.5)
        return f"the {kind} of each row is {share:.5g} of what it should be{means}"
    if _is_one(added):
        value = float(np.median(added))
        words = f"as if {abs(value):.1g} {'less' if value < 0 else 'more'} were added to the {kind}"
        return f"{words} of each row: check epsilon"
    extra = float(np.median(added / np.square(x.mean(axis=1)))) * length
    if _is_one(added / np.square(x.mean(axis=1))) and abs(extra - round(extra)) < 0.02 * extra:
        return (
            f"as if {round(extra)} zeros more than the {length} elements were in the {kind} of each"
            " row: masked lanes count, set (x - mean) to 0 there"
        )
    return f"the root of the {kind} is missing" * np.allclose(other, own**2, rtol=1e-3)


def _is_one(values: Part, tolerance: float = 0.03) -> bool:
    """True if all values are about one number, which is not 0."""
    middle = float(np.median(values))
    near = np.abs(values - middle) <= tolerance * abs(middle)
    return bool(np.isfinite(values).all() and middle and np.mean(near) >= 0.8)


def _prefix(partial: Part, wanted: Part, noise: float = 1e-5) -> int:
    """Number of elements after which every running sum is as wanted; 0 if there is none."""
    scale = np.abs(partial).max(axis=1) + 1e-30
    errors = (np.abs(partial[:, :-1] - wanted[:, None]) / scale[:, None]).max(axis=0)
    if not errors.size or not np.isfinite(errors).all():
        return 0
    best = int(np.argmin(errors))
    rest = np.abs(partial[:, -1] - wanted) / scale
    return best + 1 if errors[best] < 10 * noise and rest.max() > 20 * errors[best] else 0


# --- reductions and products: another axis, or only a part of it


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "mean": np.mean, "maximum": np.max, "minimum": np.min, "product": np.prod,
}  # fmt: skip


EXTREMA = {"max": "-inf", "min": "inf"}


def _reduced(one: Look) -> str:
    """A reduction or a running sum of an input, over another axis or a part of its own."""
    for values in one.operands:
        shape, is_scan = values.shape, values.shape == one.shape
        is_larger = values.size >= 2 * one.expected.size
        if not shape or values.size > MAX_REDUCED or not (is_scan or is_larger):
            continue
        x = values.take(np.arange(values.size, dtype=np.int64)).reshape(shape)
        axes = [a for a, n in enumerate(shape) if is_scan or x.size // n == one.expected.size]
        for kind, reduce in {"running sum": np.cumsum}.items() if is_scan else REDUCTIONS.items():
            results = {a: reduce(x, axis=a).reshape(-1)[one.places] for a in axes}
            own = [a for a in axes if (np.abs(results[a] - one.e) <= 10 * one.noise).all()]
            other = [a for a in axes if own and a != own[0] and one.fits(results[a])]
            if other:
                return (
                    f"got is the {kind} of {values.name} along dimension {other[0]}; expected is"
                    f" that along dimension {own[0]}"
                )
            if own and kind[:3] in EXTREMA and one.fits(getattr(np, kind)(one.e, 0)):
                words = f"got is the {kind} of expected and 0: masked lanes count as 0, load them"
                return f"{words} with other={EXTREMA[kind[:3]]}"
            if own and kind in ("sum", "mean"):
                length = shape[own[0]]
                lines = np.moveaxis(x, own[0], -1).reshape(-1, length)[one.places]
                for step, words in ((1, "first"), (-1, "last")):
                    partial = np.cumsum(lines[:, ::step], axis=1) / (1 if kind == "sum" else length)
                    if num := _prefix(partial, one.g, one.rounding):
                        rest = f"got is the {kind} of the {words} {num} of {length} elements"
                        return f"{rest}: a remainder or a mask is lost"
    return ""


def _product(one: Look) -> str:
    """A matrix product of two inputs, or of one and a parameter: a part of its sum, or of a
    transposed operand. What is added to the product is as it should be."""
    if len(one.shape) < 2:
        return ""
    places, e, g, width = one.places[:16], one.e[:16], one.g[:16], one.shape[-1]
    row, column = places // width, (places % width)[:, None]
    for a, b in product(one.operands, repeat=2):
        length = a.shape[-1] if a.shape else 0
        is_product = a.size * width == one.expected.size * length
        if b is a or not is_product or not 1 < length <= MAX_LINE:
            continue
        inner = np.arange(length, dtype=np.int64)
        left = a.take(row[:, None] * length + inner)
        turned, straight = column * length + inner, inner * width + column
        forms = [((width, length), turned), ((length, width), straight)]
        products = [left * b.take(at) for shape, at in forms if shape == b.shape]
        for each in products:
            if words := _part_of(each, e, g, one.rounding):
                return words
        for own, other in permutations([each.sum(axis=1) for each in products], 2):
            is_own = np.abs(e - own).max() <= 1e-4 * np.abs(own).max()
            if is_own and one.fit(e, g, other):
                return f"got is the product with {b.name} transposed, or not transposed"
    return ""


def _part_of(products: Part, e: Part, g: Part, noise: float) -> str:
    """The first or last products of sums that are left out or added twice."""
    length = products.shape[1]
    whole = products.sum(axis=1)
    for step, first, last in ((1, "first", "last"), (-1, "last", "first")):
        partial = np.cumsum(products[:, ::step], axis=1)
        if num := _prefix(partial, g - e + whole, noise):
            words = f"got is the sum of the {first} {num} of {length} products"
            return f"{words}: the {last} step of the loop over K is lost (a remainder, a mask)"
        if num := _prefix(partial, g - e, noise):
            return f"the {first} {num} of {length} products of each element are added twice"
    return ""


def _another_axis(one: Look) -> str:
    """Lines of the expected output that sum to 1 along one axis, and of got along another."""
    loose = max(1e-3, 10 * one.rounding)
    right, wrong = list[int](), list[int]()
    for axis in (axis for axis, size in enumerate(one.shape) if 3 < size <= MAX_LINE):
        places = one.expected.some_lines(axis)
        sums = [values.take(places).sum(axis=1) for values in (one.expected, one.got)]
        has = [bool((np.abs(each - 1) < loose).all()) for each in sums]
        right += [axis] * (has == [True, False])
        wrong += [axis] * (has == [False, True])
    if not (right and wrong):
        return ""
    return (
        f"got sums to 1 along dimension {wrong[0]}; expected does along dimension {right[0]}: the"
        " kernel works along another axis"
    )


# --- other functions, and how large the error is


def _sigmoid(x: Part) -> Part:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, Callable[[Part], Part]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu (erf)": lambda x: x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2,
    "gelu (tanh)": lambda x: x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "gelu (x · sigmoid(1.702 x))": lambda x: x * _sigmoid(1.702 * x),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "softplus": lambda x: np.logaddexp(x, 0),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "leaky relu (0.01)": lambda x: np.where(x > 0, x, 0.01 * x),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x,
    "round half up": lambda x: np.floor(x + 0.5),
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log1p": np.log1p, "sqrt": np.sqrt, "square": np.square, "abs": np.abs, "tanh": np.tanh,
    "sin": np.sin, "cos": np.cos, "floor": np.floor, "ceil": np.ceil, "round to even": np.round,
    "truncation": np.trunc, "sign": np.sign,
}  # fmt: skip


def _makes(
    function: Callable[[Part], Part], x: Part, wanted: Part, allowed: Part, share: float = SHARE
) -> bool:
    """True if a function gives a share of what is wanted: of FEW elements first, half of it."""
    few = slice(None, None, max(1, len(x) // FEW))
    if not is_near(function(x[few]), wanted[few], allowed[few], share=share / 2):
        return False
    return is_near(function(x), wanted, allowed, share=share)


def _function(one: Look) -> str:
    """One function of an input in place of another, or one more or less at the end."""
    near = 4 * one.noise
    tells_e, tells_g = (len(np.unique(part)) > 2 for part in (one.e, one.g))  # 1 is exp of 0
    for name, function in FUNCTIONS.items():
        if tells_e and _makes(function, one.e, one.g, one.allowed):
            return f"got = {name} of expected"
        if tells_g and _makes(function, one.g, one.e, near):
            return f"expected = {name} of got: is it left out?"
    for values in one.alike():
        x, every = values.take(one.places), FUNCTIONS.items()
        own = [name for name, function in every if _makes(function, x, one.e, near, 1.0)]
        tried = every if own else ()
        other = [name for name, function in tried if _makes(function, x, one.g, one.allowed)]
        if other:
            return f"got is {other[0]} of {values.name}, expected is {own[0]}"
    return ""


def _imprecise(one: Look) -> str:
    errors = np.abs(one.g - one.e) / (rms_of(one.e) or 1.0)
    error = float(np.median(errors))
    is_small = 2.0**-15 < error < 2.0**-7 and errors.max() < 2.0**-4
    if is_small and one.got.dtype in ("float32", "float64"):
        return (
            f"the errors are small everywhere, about {error:.1g} of the output's size: half"
            " precision, TF32 or an approximation on the way? compute in float32"
        )
    return ""


def _padded_log(one: Look) -> str:
    """A log of a sum of exp that masked lanes were in."""
    count = float(np.median(np.exp(one.g) - np.exp(one.e)))
    if 0.5 < count < 1e6 and one.fits(np.log(np.exp(one.e) + round(count))):
        return (
            f"as if {round(count)} masked lanes counted as 0 in a sum of exp: load with other=-inf"
        )
    return ""


PATTERNS: Sequence[Callable[[Look], str]] = (
    _constant, _padded_log, _scaled, _of_operand, _reduced, _moved, _product, _another_axis,
    _lines, _function, _imprecise,
)  # fmt: skip


VALUE = ("stored value",)
"""The operation whose result is stored."""
LOOP, LOAD = ("scf.for", "scf.while"), ("tt.load", "tt.descriptor_load")
ROOT, REDUCE = ("math.sqrt", "math.rsqrt", "tt.precise_sqrt"), ("tt.reduce",)
ABOUT: Mapping[str, tuple[Sequence[str], int]] = {
    "loop over K": (LOOP, 0),
    "remainder": (LOOP, 0),
    "not reset": (LOOP, 0),
    "exp overflows": (("math.exp", "math.exp2"), 0),
    "sum of exp": (LOAD, 0),
    "another axis": (LOAD, 0),
    "epsilon": (ROOT, 0),
    "root": (ROOT, 0),
    "variance": (REDUCE, -1),
    "mean of squares": (REDUCE, -1),
    "other=": (LOAD, 0),
    "along dimension": (REDUCE, 0),
    "expected is ": (VALUE, 0),
    "expected = ": (VALUE, 0),
    "of expected": (VALUE, 0),
    "· expected": (VALUE, 0),
    "approximation": (VALUE, 0),
}
"""Operations of a kernel that a pattern is about, by words in it, and which of their lines."""


def about(words: str) -> tuple[Sequence[str], int]:
    """Operations that a pattern is about, and which of their lines is to be looked at."""
    return next((found for part, found in ABOUT.items() if part in words), ((), 0))


# --- the words of a mismatch


def words_of(
    expected: Values,
    got: Values,
    differs: NDArray[np.bool_],
    *,
    pair: tuple[float, float],
    name: str = "output",
    operands: Operands = tuple,
) -> str:
    """A mismatch: where it is first and how much of it there is in a line, and what explains it in
    another.

    Args:
        differs: True for each element that differs.
        pair: the first two that do.
        operands: what the output is made from.
    """
    first, places = int(np.argmax(differs)), np.flatnonzero(differs)
    largest, num_unset = list[float](), 0
    with np.errstate(invalid="ignore"):
        for start in range(0, len(places), BLOCK_ELEMENTS):
            part = places[start : start + BLOCK_ELEMENTS]
            e, g = expected.take(part), got.take(part)
            num_unset += int(np.count_nonzero(np.isnan(g) & ~np.isnan(e)))
            errors = np.abs(g - e)
            if (is_finite := np.isfinite(errors)).any():
                largest.append(float(errors[is_finite].max()))
    words = describe(first, pair, differs.shape, len(places), name=name)
    words += f", max abs error {max(largest):.3g}" if largest else ""
    words += f", {_percent(num_unset / differs.size)} are NaN" if num_unset else ""
    why = _explained(look(differs, expected, got, operands=operands()), name=name)
    return f"{words}\n{why}" if why else words


def describe(
    first: int, pair: tuple[float, float], shape: Sequence[int], num_differing: int, *, name: str
) -> str:
    """The first element of a mismatch, by its flat number, and the share of those that differ."""
    index = ", ".join(str(int(one)) for one in np.unravel_index(first, shape))
    one, other = _numbers(*pair)
    words = f"{name}[{index}]" if shape else name
    words += f": expected {one}, got {other}"
    words += ", which torch.allclose refuses" if one == other == "nan" else ""
    return f"{words}; {_percent(num_differing / math.prod(shape))} of elements differ"


def _explained(one: Look, *, name: str) -> str:
    """The part of an output that differs and the first pattern, in one line; empty if there is
    none. A verdict does not depend on it: an error in a hypothesis is logged."""
    try:
        found = [one.is_where(), pattern(one)]
    except Exception:
        logger.exception("a pattern of %s %s", one.got.dtype, one.shape)
        return ""
    if one.region is not None:
        remark = f" ({one.region.words})" if one.region.place and one.region.words else ""
        place = f"{name}{one.region.place}" if one.region.place else one.region.words
        found[0] = f"wrong only in {place}{remark}"
    return ": ".join(words for words in found if words)


def _numbers(one: float, other: float) -> tuple[str, str]:
    """Two numbers, with as many digits as tell them apart."""
    if not (isinstance(one, float) and isinstance(other, float)):
        return str(one), str(other)
    for digits in range(4, 17):
        pair = f"{one:.{digits}g}", f"{other:.{digits}g}"
        if pair[0] != pair[1]:
            return pair
    return repr(one), repr(other)


def _percent(share: float) -> str:
    if 0.995 <= share < 1:
        return ">99%"
    return f"{100 * share:.0f}%" if share >= 0.01 else "<1%"
