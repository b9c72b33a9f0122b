"""The tables of plants: values that replace a secret few elements of an input, or rows of it.

Called by sets.py, and by the oracle for parameters. A set is the problem's own inputs with some of
these, at places that no sample foresees: one at least in each block of BLOCK elements and in each
row, the first and the last of an axis in some rows. Rows, columns and slabs are planted whole or in
part. Half of the places are the same in all inputs of a shape. A line of a table makes the values
of one kind. Whatever holds of an input in every draw holds of a planted one, too (`sought.py`):
rows stay sorted, a triangle stays one.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from forge.evalpool.judge.wide.patterns import FAR as FAR_KINDS
from forge.evalpool.judge.wide.sought import MIN_ROW, Domain, Looks

BLOCK = 512
"""One plant at least in so many elements."""
MAX_SHARE = 16
"""At most one element in so many, beside whole rows."""
MIN_PLANTS = 4
"""Least number of plants of each kind where there are so many places."""
NUM_LINES = 8
"""Lines of each axis of which the first or last element is planted."""
MAX_SLAB = 1 << 18
"""Elements of a row, but for those along the last axis."""
MAX_FIELD = 256
"""Largest range of integers that may be a field of bits."""
MIN_NUMBERS = 256
"""Integers that are no lengths."""
MAX_SINGLE = (1 << 63) - (1 << 10)
"""Largest int64 that is a double."""
MAX_VALUES = 12
"""Different values of a group that are tried one by one."""
FAR_CONSTANT = 64.0
"""Constants from so many times the rms on are loud."""
LARGE = ((3.0, 45.0), (3.0, 22.0), (6.0, 12.0), (3.0, 6.0), (1.0, 3.0))
"""Powers of two by which a large plant exceeds the rms, by step, while the reference bears it."""
NEAR = 2
"""The first step of what is asked for in the problem's own types, too."""

WHOLE_GATES = ("reads", "gates")
"""Keys of `Looks.does`: a reference may decide once for all of an input."""
FEW = ("two", "distinct")
"""Forms that no other value keeps: they have constants that are looked for beyond their range."""

Values = torch.Tensor
Places = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Plants of one kind in one tensor."""

    tensor: int
    """Among the leaves of the inputs."""
    kind: str
    at: Places
    """[plants] flat indices."""
    values: Values
    """[plants] in the tensor's type."""
    stays: tuple[tuple[int, Places], ...] = ()
    """(tensor, flat indices) of the row, and of the one that it is a copy of: into them nothing
    else goes."""


@dataclass(slots=True, kw_only=True)
class Ground:
    """A tensor of a set in which something is planted."""

    number: int = 0
    """The tensor's, among the leaves of the inputs."""
    value: torch.Tensor
    """Contiguous, with the plants so far."""
    domain: Domain
    looks: Looks
    kin: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    """Other inputs, of any type whose values it may have, by number."""
    every: Sequence[torch.Tensor] = ()
    """All inputs."""
    strangers: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    """[rows, length] parameters with rows as long as its own."""
    shared: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Places and rows that all inputs of a shape share."""
    taken: torch.Tensor | None = None
    """[elements] True where whole rows are planted, into which nothing else goes."""
    turn: int = 0
    """Number of the set, by which rows of another axis are planted."""
    size: int = NEAR
    """Place in LARGE."""
    counts: list[int] = field(default_factory=list[int])
    """Numbers of one of two values in the next rows; -1 for any."""
    rms: float = 1.0
    """Root mean square before anything is planted."""
    is_rough: bool = False
    """True if the set is asked for in the problem's own types, too."""

    @property
    def flat(self) -> torch.Tensor:
        return self.value.view(-1)

    @property
    def is_float(self) -> bool:
        return self.value.is_floating_point()

    @property
    def is_index(self) -> bool:
        """True for integers that must not be negative: torch takes such an index, too."""
        return not self.is_float and "indexes" in self.looks.does and self.domain.low >= 0

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest value; two values for a mask that has one alone."""
        low, high = self.domain.low, self.domain.high
        return (0.0, high or 1.0) if self.domain.form == "two" and low == high else (low, high)

    def others(self) -> list[int]:
        """Numbers of the other inputs of its type and shape."""
        return [n for n, one in self.kin.items() if one.shape == self.value.shape]

    def movable(self, at: Places, *, is_loud: bool = False) -> Places:
        """The flat indices at which something may be planted, in random order; loud ones in whole
        rows, too."""
        for mask in (self.domain.fixed, None if is_loud else self.taken):
            at = at if mask is None else at[~mask[at]]
        return at[torch.randperm(len(at))]

    def half_shared(self, kind: str, at: Places) -> Places:
        """The places, of which half are where the kind is planted in another input of the shape."""
        first = self.shared.setdefault((self.value.shape, kind), at)
        if first is at:
            return at
        return self.movable(torch.cat([first[::2], at[: len(at) // 2 + 1]]).unique())

    def cast(self, values: Values) -> Values:
        """Values in the tensor's type, far from where it overflows."""
        if self.is_float:
            most = torch.finfo(self.value.dtype).max / 64
            inside = values.clamp(-most, most)
            return torch.where(values.isfinite(), inside, values).to(self.value.dtype)
        if self.value.dtype is not torch.bool:
            ends = torch.iinfo(self.value.dtype)
            values = values.clamp(ends.min, min(ends.max, MAX_SINGLE))
            if self.is_index and self.domain.form == "sorted":  # offsets end where rows do
                values = values.clamp(max=self.domain.high)
        return values.to(self.value.dtype)

    def bounded(self, values: Values) -> Values:
        """Values within the range, of integers that may be places or lengths and that a candidate
        may have no room beyond for."""
        low, high = self.domain.low, self.domain.high
        is_open = self.is_float or low < 0 or not self.looks.is_aimed
        return values if is_open else values.clamp(low, high)

    def constants(self, *, far: bool) -> list[float]:
        """Constants that the reference compares with, of a sign that inputs have."""
        most = FAR_CONSTANT * max(1.0, self.rms)
        is_signed = self.domain.low < 0 or self.domain.form in FEW
        signed = [one for one in self.looks.constants if one > 0 or is_signed]
        return [one for one in self.possible(signed) if (abs(one) > most) is far]

    def possible(self, values: Sequence[float]) -> list[float]:
        """The values that the domain may have: of few or of different values, those beyond its
        range with which the reference compares something."""
        domain = self.domain
        if domain.form not in FEW:
            return list(values)
        near = 1 if domain.form == "distinct" else 0
        beyond = [one for one in values if not domain.low <= one <= domain.high]
        return [n for n in beyond if any(abs(n - one) <= near for one in self.looks.compared)]


def rms_of(value: torch.Tensor) -> float:
    """Root mean square of the finite elements at the beginning; 1 for zeros."""
    flat = value.reshape(-1)[: 1 << 16].double().nan_to_num(0.0, 0.0, 0.0)
    return float(flat.square().mean().sqrt()) or 1.0


# --- values of single elements


def _signs(shape: torch.Size) -> Values:
    return (torch.rand(shape) < 0.5).double() * 2 - 1


def power_of_2(exponent: Values) -> Values:
    """torch compiles `exp2` on a card when it is first called, which takes 0.2 s."""
    return torch.pow(2.0, exponent)


def repeated(values: Sequence[float], old: Values) -> Values:
    """Repeats the values in random order, each as often as another one."""
    turns = (torch.randperm(old.numel()) + random.randrange(len(values))) % len(values)
    return torch.tensor(values, dtype=torch.float64)[turns].view(old.shape)


def _sign(ground: Ground, old: Values) -> Values:
    """Another sign, and in every second place up to 8 times as much, of either sign."""
    turned = torch.where(old == 0, -ground.rms / 8 * (1 + torch.rand(old.shape)), -old)
    grown = turned * _signs(old.shape) * (3 * torch.rand(old.shape)).exp2()
    return torch.where(torch.rand(old.shape) < 0.5, turned, grown)


def large_values(ground: Ground, old: Values) -> Values:
    low, high = LARGE[ground.size]
    if ground.value.itemsize < 4:
        low, high = min(low, 2.0), min(high, 4.0)
    power = high - (high - low) * torch.rand(old.shape, dtype=torch.float64) ** 2
    sign = 1.0 if ground.domain.low >= 0 else -1.0 if ground.domain.high <= 0 else _signs(old.shape)
    return power_of_2(power) * max(1.0, ground.rms) * sign


def _small(ground: Ground, old: Values) -> Values:
    power = torch.randint(6, 12 if ground.value.itemsize < 4 else 40, old.shape).double()
    return torch.where(old == 0, ground.rms, old) * power_of_2(-power)


def _constant(ground: Ground, old: Values, *, far: bool = False) -> Values:
    """Constants that the reference compares with, and values on both sides of them."""
    if not ground.is_float:
        return _whole_constant(ground, old)
    if ground.domain.form in FEW:
        return repeated(ground.constants(far=far), old)
    values = repeated([*ground.constants(far=far), *([] if far else [1.0])], old)
    step = values.abs() * torch.finfo(ground.value.dtype).eps
    side = repeated([0.0, 0.0, 1.0, -1.0], old)
    share = 0.05 + torch.rand(old.shape)
    apart = values * (1 + _signs(old.shape) * share)
    near = values + repeated(ground.constants(far=False) or [0.0], old) * (0.4 + share)
    made = torch.where(torch.rand(old.shape) < 0.4, apart, near)
    return torch.where(torch.rand(old.shape) < 0.5, values + step * side, made)


def _whole_constant(ground: Ground, old: Values) -> Values:
    """Integers that the reference compares with, and values on both sides of a bound."""
    integers = ground.possible(ground.looks.integers)
    made = repeated(integers, old)
    if ground.domain.form in FEW:
        return made
    bounds = torch.tensor([n for n in integers if {n - 1, n + 1} & {*integers}]).double()
    span = ground.domain.high - ground.domain.low + 2
    apart = made + _signs(old.shape) * (2 + span * torch.rand(old.shape)).floor()
    if ground.is_index:
        apart = apart.abs()
    return torch.where(torch.isin(made, bounds) & (torch.rand(old.shape) < 0.5), apart, made)


def _beyond(ground: Ground, old: Values) -> Values:
    """Values of another sign, or beyond the range."""
    wide, own = 21 if ground.value.itemsize < 8 else 36, old.long()
    most = (wide, wide, wide, 4, 2)[ground.size]
    grown = own * 2 ** torch.randint(1, most, old.shape) + torch.randint(0, 2, old.shape)
    if not ground.size:  # of which float64 has not all
        grown = torch.randint(1 << 62, old.shape) >> torch.randint(8, old.shape) | 1
    if ground.is_index:
        return grown
    return torch.where(torch.rand(old.shape) < 0.5, -own - 1, grown)


def _edge(ground: Ground, old: Values) -> Values:
    low, high = ground.ends
    if ground.domain.form == "two":  # the other one
        return torch.where(old == high, low, high)
    is_length = low == 1 and "wraps" not in ground.looks.does  # else a length of 0 may be index -1
    return repeated([low, high, *([0.0] if is_length else [])], old)


def _single(ground: Ground, old: Values) -> Values:
    """A smaller integer and, by turns, a larger one, for which Triton makes the same kernel."""
    given, is_larger = int(old), ground.turn % 2 == 1
    tried = range(given + 1, 64 * given) if is_larger else range(2, given)
    alike = [n for n in tried[: 1 << 16] if (n % 16 == 0) == (given % 16 == 0)] or [0]
    if is_larger and "sizes" in ground.looks.does:
        alike = [n for n in alike if n in ground.looks.integers][-1:] or [0]
    chosen = random.choice(alike if is_larger else [0, random.choice(alike)])
    return torch.full_like(old, chosen)


ELEMENTS: dict[str, Callable[[Ground, Values], Values]] = {
    "large": large_values,
    "special": lambda ground, old: repeated(ground.looks.special, old),
    "far constant": lambda ground, old: _constant(ground, old, far=True),
    "beyond": _beyond,
    "edge": _edge,
    "constant": _constant,
    "ignored": lambda ground, old: repeated(ground.possible(ground.looks.ignored), old),
    "within": lambda ground, old: torch.randint(
        min(int(ground.domain.low), 1), int(ground.domain.low) + 1, old.shape
    ),
    "single": _single,
    "sign": _sign,
    "zero": lambda _, old: torch.zeros_like(old) * _signs(old.shape),  # of either sign
    "small": _small,
}
"""Values by kind, of single elements, in the order of planting: what hides others comes first."""


# --- which kinds a tensor can have


def elements_for(ground: Ground) -> list[str]:
    """Kinds of single elements that can be planted in a tensor, in the order of planting."""
    looks, form, low, high = ground.looks, ground.domain.form, ground.domain.low, ground.domain.high
    if form in ("none", "hot", "ordered", "single"):
        return ["single"] if form == "single" else []
    if is_strict(ground):
        return ["between"]
    is_sorted, is_any, is_equal, is_whole = (
        form == "sorted", form not in FEW, low == high, not ground.is_float,
    )  # fmt: skip
    sought = ground.possible(looks.integers) if is_whole else ground.constants(far=False)
    has = dict.fromkeys(ELEMENTS, is_any and not is_whole) | {
        "between": is_sorted and is_whole,
        "special": is_any and looks.special and not is_sorted and not is_whole,
        "far constant": not is_whole and ground.constants(far=True),
        "beyond": is_any and is_whole and _may_exceed(ground),
        "edge": form == "two" or (is_any and is_whole and (not is_equal or low == 1)),
        "constant": sought or (is_any and not is_whole),
        "ignored": is_whole and ground.possible(looks.ignored),
        "within": is_any and is_whole and is_equal,
        "single": False,
        "tie": (form == "distinct" and "accumulates" in looks.does)
        or (is_any and not is_equal),  # of equal ones, takes plants back
        "other": is_any and "decides" in looks.does and ground.kin,
    }
    return [kind for kind in ("between", *ELEMENTS, "tie", "other") if has[kind]]


def is_strict(ground: Ground) -> bool:
    """True for sorted integers that are all different, as offsets, compared with no number."""
    is_whole = not ground.is_float and ground.domain.form == "sorted"
    return is_whole and not ground.looks.integers and bool((ground.value.diff(dim=-1) > 0).all())


def _may_exceed(ground: Ground) -> bool:
    """True for integers that are no lengths or fields of bits, and no sizes of memory: of both
    signs, or many, or compared with nothing. The reference refuses an index."""
    value, domain, looks = ground.value, ground.domain, ground.looks
    most = domain.high + 1
    is_field = domain.low == 0 and most <= MAX_FIELD and math.log2(most).is_integer()
    is_long = value.numel() >= MIN_NUMBERS or (value.itemsize == 1 and value.ndim > 1)
    is_none = (is_long or not looks.is_comparing) and not (is_field and "bits" in looks.does)
    return "sizes" not in looks.does and (domain.low < 0 or is_none)


def parts_of(group: Group) -> list[Group]:
    """The group by its values, or by their signs if there are many, where not all are borne."""
    values, every = group.values, group.values.unique()
    is_few = len(every) <= MAX_VALUES
    chosen = [values == one for one in every] if is_few else [values < 0, values >= 0]
    return [
        replace(group, at=group.at[one], values=group.values[one]) for one in chosen if one.any()
    ]


# --- places of single elements


def make_elements(ground: Ground, kinds: Sequence[str]) -> list[Group]:
    """Plants of several kinds in one tensor, each at places of its own."""
    at = _places(ground, num_kinds=len(kinds))
    groups: list[Group] = []
    for number, kind in enumerate(kinds):
        if kind == "between":
            own, values = _between(ground)
        else:
            own = _places_of(ground, kind, at[number :: len(kinds)])
            values = element_values(ground, kind, own)
            if kind == "large" and ground.size >= NEAR:  # else they would cancel in a mean
                values = _with_loud_ends(ground, own, values)
        if len(own):
            values = ground.cast(ground.bounded(values))
            groups.append(Group(tensor=ground.number, kind=kind, at=own, values=values))
    return groups


def _places_of(ground: Ground, kind: str, own: Places) -> Places:
    """The places of one kind: of a few at least, and where that kind is looked for."""
    size, form = ground.value.numel(), ground.domain.form
    if len(own) < MIN_PLANTS:
        more = torch.randint(size, (2 * MIN_PLANTS,))
        own = torch.cat([own, ground.movable(more)[:MIN_PLANTS]]).unique()
    if form == "two" and ground.turn % 2:  # so few that no sample has one
        return own[torch.randperm(len(own))[: MIN_PLANTS // 2]]
    if kind in ("large", "edge", "beyond"):
        is_loud = kind == "large" and ground.turn % 2 == 1  # else whole rows stay
        own = torch.cat([own, _ends(ground, is_loud=is_loud)]).unique()
    if kind.endswith("constant"):
        sought = ground.looks.constants if ground.is_float else ground.looks.integers
        num = min(32 * len(sought), size // (MAX_SHARE if ground.is_float else 4))
        own = torch.cat([own, torch.randint(size, (num,))]).unique()
        own = ground.movable(ground.shared.setdefault((ground.value.shape, "constant"), own))
    elif form != "two":
        own = ground.half_shared(kind, own)
    if form == "distinct" and kind != "tie":  # each value once
        own = own[torch.randperm(len(own))[: len(ground.possible(ground.looks.integers))]]
    return own


def element_values(ground: Ground, kind: str, at: Places) -> Values:
    if kind == "other":
        return _related(ground, at)
    if kind == "tie":  # another element of the row
        length = max(1, ground.value.shape[-1] if ground.value.ndim else 1)
        start = at // length * length
        step = torch.randint(1, max(2, length), at.shape)
        step = torch.where(torch.rand(at.shape) < 0.5, 1, step)  # a neighbour in every second place
        return ground.flat[start + (at - start + step) % length].double()
    return ELEMENTS[kind](ground, ground.flat[at].double())


def _related(ground: Ground, at: Places) -> Values:
    """Values of another input, and in two of three places another size or sign of them, their sum
    with a constant, or the sum or difference of two inputs."""
    size = ground.value.numel()

    def other() -> Values:
        flat = random.choice([*ground.kin.values()]).view(-1)
        return flat[at if len(flat) == size else torch.randint(len(flat), at.shape)].double()

    one, sign = other(), _signs(at.shape)
    sought = ground.looks.constants if ground.is_float else ground.looks.integers
    made = torch.stack([
        one, one, one, 2 * one, one / 2, -one,
        one + sign * repeated([1.0, *sought], one),
        other() + sign * other(),
    ])  # fmt: skip
    made = made.gather(0, torch.randint(len(made), (1, len(at))))[0]
    return made.abs() if ground.is_index else made


def _places(ground: Ground, *, num_kinds: int) -> Places:
    """[places] flat indices in random order: in each block, and in each row."""
    value, size = ground.value, ground.value.numel()
    if size == 1:
        return torch.zeros(1, dtype=torch.int64)
    starts = torch.arange(0, size, BLOCK)
    blocks = starts + (torch.rand(len(starts)) * (size - starts).clamp(max=BLOCK)).long()
    last = value.shape[-1]
    least = min(2 * num_kinds, max(1, size // 4))
    rows = torch.randperm(size // last)[: max(1, size // MAX_SHARE - len(blocks))]
    rows = rows * last + torch.randint(last, rows.shape)
    return ground.movable(torch.cat([blocks, rows, torch.randint(size, (least,))]).unique())


def _ends(ground: Ground, *, is_loud: bool = False) -> Places:
    """[places] First and last elements of some lines of each axis, and those whose index the
    reference may compare with a number."""
    shape, size = ground.value.shape, ground.value.numel()
    found = [torch.zeros(0, dtype=torch.int64)]
    for axis, length in enumerate(shape):
        lines, inner = (size // length if length > 1 else 0), math.prod(shape[axis + 1 :])
        is_few = lines <= BLOCK
        chosen = torch.randperm(lines) if is_few else torch.randint(lines, (BLOCK,))
        marks = [n for n in ground.looks.integers if 0 < n < length - 1]
        num = min(NUM_LINES, max(1, lines // (len(marks) + 1)))
        for number, part in enumerate(chosen.split(num)[: len(marks) + 1]):
            first = part // inner * (inner * length) + part % inner
            columns = [marks[number - 1]] if number else [0, length - 1]
            found += [first + at * inner for at in columns]
    return ground.movable(torch.cat(found).unique(), is_loud=is_loud)


def _with_loud_ends(ground: Ground, at: Places, values: Values) -> Values:
    """Large values of which those of `_ends` in rows exceed all others, on both sides of 0: an
    extremum that misses an end is another one."""
    length = ground.value.shape[-1] if ground.value.ndim else 1
    if not len(at) or length < 2:
        return values
    loud, column = values.clone(), at % length
    marks = torch.tensor([0, length - 1, *ground.looks.integers])
    ends = torch.nonzero(torch.isin(column, marks)).flatten()
    turns = (at[ends] // length).unique(return_inverse=True)[1] + (column[ends] > 0)
    sign = 1 - 2 * (turns % 2).to(values.dtype)  # the other one at a row's other end
    if ground.domain.low >= 0 or ground.domain.high <= 0:
        sign = values[ends].sign()
    loud[ends] = 2 * values.abs().max() * sign
    return loud


def _between(ground: Ground) -> tuple[Places, Values]:
    """Sorted rows of integers with other distances: unlike ones in another order, or any that do
    not vanish in place of equal ones."""
    length = ground.value.shape[-1]
    rows = ground.value.reshape(-1, length)[: max(1, MAX_SLAB // length)].double()
    gaps = rows.diff(dim=-1)
    low = int(gaps.min())
    if low < gaps.max():
        made = gaps.gather(-1, torch.rand(gaps.shape).argsort(-1))
    else:
        span = low * (length - 1)
        near = random.randint(length - 1, span)
        cuts = torch.stack([torch.randperm(near - 1)[: length - 2].sort().values + 1 for _ in rows])
        cuts[:, random.randrange(length - 1) :] += span - near  # behind a distance of most
        cuts = torch.nn.functional.pad(torch.nn.functional.pad(cuts, (1, 0)), (0, 1), value=span)
        made = cuts.diff(dim=-1).double()
    made = torch.cat([rows[:, :1], rows[:, :1] + made.cumsum(-1)], -1)
    if not is_strict(ground):  # one distance that is several, or a total that is less than all
        start, end = random.randrange(length // 2), random.randrange(length // 2, length - 1)
        made[:, start : end + 1] = made[:, start, None]
        if ground.turn % 2:
            made = made.clamp(max=made[:, -random.randint(2, max(2, length // 4)), None])
    return torch.arange(made.numel()), made.flatten()


# --- rows

MAX_ROWS, ROW_SHARE, FEW_ROWS = 48, 3, 8
"""Rows of a set: at most so many where the reference compares something, half as many else; and one
in so many; of so few all but a quarter."""
FAR = 1100.0
"""Distance of a row that is lowered or raised: exp of it vanishes or overflows in float64."""
FAR_IN_SINGLE = 100.0
"""The same in float32, in which a variance in one pass has three digits left there."""
MIN_SIZE = 1e-12
"""Least size of a row that is next to a constant: its squares do not vanish."""


class _Row(NamedTuple):
    kind: str
    line: Places
    part: Places
    """Indices within the line."""


# --- values of rows


def _bound(ground: Ground, old: Values, side: float) -> Values:
    """A whole row above a constant that the reference compares with, below it, or next to it."""
    is_any = not side or ground.domain.low >= 0
    sought = [one for one in ground.constants(far=False) if is_any or one * side > 0] or [1.0]
    constant = random.choice((random.choice(sought), max(sought, key=abs)))
    noise = torch.rand(old.shape, dtype=torch.float64)
    if not side:
        return constant * (1 + (noise - 0.5) / 4)  # long products stay, and one-pass variances
    is_positive = side < 0 and ground.domain.low >= 0
    return constant + side * noise * (abs(constant) if is_positive else ground.rms)


def _scaled(ground: Ground, old: Values) -> Values:
    """A whole row or input next to 0, where `exp(x) - 1` in float64 still has seven digits, or of
    a size next to a constant that may bound it."""
    small = [one for one in ground.looks.constants if MIN_SIZE < one < ground.rms]
    if small and random.random() < (0.5 if ground.looks.does.isdisjoint(WHOLE_GATES) else 0.9):
        size = random.choice((old.abs().max(), old.norm(), old.square().mean().sqrt()))
        constant = random.choice((random.choice(small), min(small)))
        return old * (constant * 2.0 ** random.uniform(-4, 1) / (float(size) or 1.0))
    return old * 2.0 ** -random.randint(4, 12 if ground.value.itemsize < 4 else 28)


def _grown(ground: Ground, old: Values) -> Values:
    most = 4.0 if ground.value.itemsize < 4 else LARGE[ground.size][1]
    return old * 2.0 ** random.uniform(1, most)


def _moved(ground: Ground, old: Values, sign: float) -> Values:
    """A whole row or input far below 0 or above it; in the last step of that sign alone."""
    if ground.size == len(LARGE) - 1:
        return sign * _positive(ground, old)
    is_small = ground.value.dtype is torch.float16
    far = random.choice((FAR / 4, 5 * FAR)) if is_small else FAR / (4 if ground.size > NEAR else 1)
    if ground.is_rough:
        far = FAR / 4 if is_small else FAR_IN_SINGLE
    return old + sign * far * max(1.0, ground.rms) * random.uniform(1.0, 1.5)


def _equal(ground: Ground, old: Values) -> Values:
    """Equal values; of floats up to 4 times as much, as of a gate that lets a whole row through,
    or powers of two, whose sums are exact: a deviation in one pass is 0."""
    value = float(random.choice(old)) * (2.0 ** random.randrange(3) if ground.is_float else 1)
    if ground.is_float and value and math.isfinite(value) and random.random() < 0.5:
        value = math.copysign(2.0 ** round(math.log2(abs(value))), value)
    return torch.full_like(old, value)


def _positive(ground: Ground, old: Values) -> Values:
    return torch.where(old == 0, ground.rms / 8, old).abs()


def _largest(ground: Ground, old: Values) -> Values:
    """The end of a type's range, or a part of a wide one: a sum of them may exceed another type."""
    most = torch.iinfo(ground.value.dtype).max
    return torch.full_like(old, most // 4 if ground.value.itemsize == 4 else most)


def _far(ground: Ground, old: Values, sign: int) -> Values:
    """Integers all below the range or above it; not far beside extrema, where people mask."""
    most = 19 if "extrema" in ground.looks.does else 21 if ground.value.itemsize < 8 else 36
    span = ground.domain.high - ground.domain.low + 1
    return old + sign * (span + 2 ** random.randint(most // 2, most))


def _other_row(ground: Ground, old: Values) -> Values:
    """Another row, moved or of another size."""
    other = random.choice(ground.flat.view(-1, len(old))).double()
    size = random.choice((1.0, 2.0 ** -random.uniform(0, 6)))
    return other * size + random.choice((0.0, random.gauss(0, 1))) * ground.rms


def _occurring(ground: Ground, old: Values) -> Values:
    """A number that the reference compares integers with and that occurs among them; else any."""
    sought = torch.tensor([*ground.looks.integers, *ground.looks.ignored])
    found = old[torch.isin(old, sought)]
    return torch.full_like(old, random.choice(found if len(found) else old.view(-1)).item())


def _counted(ground: Ground, old: Values) -> Values:
    """A row of two values in which one occurs any number of times."""
    low, high, length = ground.domain.low, ground.domain.high, len(old)
    if not ground.counts:
        marks = {*ground.looks.integers, *(int(n) for n in ground.looks.constants if n % 1 == 0)}
        marks |= set[int]() if ground.looks.is_aimed else {0, 1, 2, length - 1, length}
        marks -= {0} if ground.domain.is_filled else set()
        few = [n for n in marks if 0 <= n <= length]
        ground.counts = [-1] * 2 * len(few) + random.sample(few, len(few))
    num = ground.counts.pop()
    chosen = _part(length) if num < 0 else torch.randperm(length)[:num]
    return torch.full_like(old, 0.0 if low == high else low).index_fill_(0, chosen, high or 1.0)


def _opposite(ground: Ground, old: Values) -> Values:
    low, high = ground.domain.low, ground.domain.high
    return low + high - old if ground.domain.form == "two" else -old


def _levels(ground: Ground, old: Values, *, in_runs: bool) -> Values:
    """A row of two or three values, anywhere or side by side; of a mask of its two."""
    levels = old[torch.randperm(len(old))[: random.randint(2, 3)]]
    if ground.domain.form == "two":
        levels = old.new_tensor([ground.domain.low, ground.domain.high])
    at = torch.randint(len(levels), old.shape)
    if in_runs:  # up to three of each
        places = torch.randperm(len(old))[: random.randint(1, 5)]
        cuts = torch.zeros_like(at).index_fill_(0, places, 1)
        at = (cuts.cumsum(0) + random.randrange(2)) % len(levels)
    return levels[at]


def _even(ground: Ground, old: Values) -> Values:
    """The same with few digits: sums and differences of them are exact."""
    unit = 2.0 ** round(math.log2(ground.rms) - 6) if ground.is_float else 1.0
    return (old / unit).round() * unit


def _progression(ground: Ground, old: Values) -> Values:
    even = _even(ground, old)
    step = even[even != 0].abs().min() if bool(even.any()) else 1.0
    return even[0] + step * random.choice((1, -1)) * torch.arange(len(old))


def _stepped(ground: Ground, old: Values) -> Values:
    """Equal steps, each a part of a constant that the reference compares with, of a small one."""
    sought = ground.constants(far=False)
    small = [one for one in sought if abs(one) < ground.rms]
    return old[0] + random.choice(small or sought) * random.uniform(0.5, 1) * torch.arange(len(old))


def _cut(_: Ground, old: Values) -> Values:
    """Two rising rows, one after the other, often at the end of a block."""
    step = 2 ** random.randrange(max(1, int(math.log2(len(old)))))
    return old.sort().values.roll(step * random.randrange(len(old) // step))


def _balanced(ground: Ground, old: Values) -> Values:
    half = _even(ground, old)[: len(old) // 2]
    return torch.cat([half, -half, half.new_zeros(len(old) % 2)])[torch.randperm(len(old))]


def _peaked(ground: Ground, old: Values) -> Values:
    values = old.sort().values
    is_left = torch.rand(old.shape) < random.random()
    return torch.cat([values[is_left], values[~is_left].flip(0)])


def _end_of(_: Ground, old: Values) -> Values:
    is_head = torch.arange(len(old)) < random.randrange(1, max(2, len(old)))
    return torch.where(is_head if random.random() < 0.5 else ~is_head, old, 0.0)


def _few_of(_: Ground, old: Values) -> Values:
    """All 0 but for up to five elements."""
    at = torch.randperm(len(old))[: random.choice((1, 1, random.randint(1, 5)))]
    return torch.zeros_like(old).index_fill_(0, at, random.choice((1.0, float(old[at[0]]) or 1.0)))


def _bent(_: Ground, old: Values) -> Values:
    """A row whose steps grow, from below 0 to above."""
    steps = old.sort().values
    return (steps - steps.mean()).cumsum(0) / max(1.0, len(old) ** 0.5)


def _geometric(ground: Ground, old: Values) -> Values:
    exponent = random.uniform(0.02, min(1.0, 30 / len(old))) * torch.arange(len(old)).double()
    return ground.rms * power_of_2(exponent)


def _across(_: Ground, old: Values) -> Values:
    """A row whose product with another one, of exact terms, is 0."""
    turned = old[: len(old) // 2 * 2].view(-1, 2).flip(-1) * torch.tensor([1.0, -1.0])
    return torch.cat([turned.flatten(), old.new_zeros(len(old) % 2)])


def _ended(_: Ground, old: Values) -> Values:
    """The maximum at one end, the minimum at the other one."""
    made, first = old.clone(), random.choice((0, -1))
    for end, extremum in ((first, torch.argmax), (-1 - first, torch.argmin)):
        place = int(extremum(made))
        made[[end, place]] = made[[place, end]]
    return made


def _padded(ground: Ground, old: Values) -> Values:
    """A row that ends in some of one number."""
    filler = random.choice(ground.possible(ground.looks.integers) or [0])
    return old.index_fill(0, torch.arange(random.randrange(1, max(2, len(old))), len(old)), filler)


def _numbered(ground: Ground, old: Values) -> Values:
    """Counts from 0 to the end of the range, and then from 0 again."""
    numbers = torch.arange(len(old)).double()
    return numbers if ground.is_float else numbers % (ground.domain.high + 1)


def _mixed(ground: Ground, old: Values) -> Values:
    """Two of the shapes, one after the other."""
    for kind in random.sample(SHAPES, 2):
        old = ROWS[kind][1](ground, old)
    return old


LINKED, ENDED = "linked row", "ended row"
"""Indices each of which is a neighbour's: a chain as long as the row; extrema at its ends."""

ROWS: dict[str, tuple[str, Callable[[Ground, Values], Values]]] = {
    "zero row": ("zero", lambda _, old: torch.zeros_like(old)),
    "equal row": ("equal", _equal),
    "negative row": ("any", lambda ground, old: -_positive(ground, old)),
    "positive row": ("any", _positive),
    "lowered row": ("any", lambda ground, old: _moved(ground, old, -1.0)),
    "raised row": ("any", lambda ground, old: _moved(ground, old, 1.0)),
    "scaled row": ("any", _scaled),
    "grown row": ("any", _grown),
    "large row": ("any", large_values),
    "row above": ("any", lambda ground, old: _bound(ground, old, 1.0)),
    "row below": ("any", lambda ground, old: _bound(ground, old, -1.0)),
    "row near": ("any", lambda ground, old: _bound(ground, old, 0.0)),
    "same row": ("copied", lambda _, old: old),  # as another one, which `_copied` takes
    "opposite row": ("opposite", _opposite),
    "twin row": ("copied", lambda _, old: old),
    "shifted row": ("copied", lambda _, old: old.roll(random.randrange(len(old)))),
    "turned row": ("turned", lambda _, old: old.flip(0)),
    "shuffled row": ("turned", lambda _, old: old[torch.randperm(len(old))]),
    "rising row": ("rising", lambda _, old: old.sort().values),
    "falling row": ("ordered", lambda _, old: old.sort(descending=True).values),
    "peaked row": ("ordered", _peaked),
    "cut row": ("ordered", _cut),
    "row by size": ("ordered", lambda _, old: old[old.abs().argsort()]),
    "mirrored row": ("ordered", lambda _, old: torch.cat(
        [old[: len(old) // 2], old[: -(-len(old) // 2)].flip(0)]
    )),
    "periodic row": (
        "ordered", lambda _, old: old[torch.arange(len(old)) % random.choice((2, 2, *range(3, 9)))]
    ),
    "row of levels": ("ordered", lambda ground, old: _levels(ground, old, in_runs=False)),
    "row of runs": ("runs", lambda ground, old: _levels(ground, old, in_runs=True)),
    "even row": ("ordered", _progression),
    "balanced row": ("ordered", _balanced),
    "alternating row": (
        "ordered", lambda _, old: old.abs() * (1 - 2 * (torch.arange(len(old)) % 2))
    ),
    "special row": ("special", lambda ground, old: repeated(
        random.choice((ground.looks.special, [random.choice(ground.looks.special)])), old
    )),
    "largest row": ("added", _largest),
    "higher row": ("moved", lambda ground, old: _far(ground, old, 1)),
    "deeper row": ("moved", lambda ground, old: _far(ground, old, -1)),
    "permuted row": ("permuted", lambda _, old: old[torch.randperm(len(old))]),
    LINKED: ("linked", lambda _, old: old),
    "other row": ("columns", _other_row),
    "counted row": ("counted", _counted),
    "row of most": ("", lambda ground, old: torch.full_like(old, ground.ends[1]).index_fill_(
        0, torch.randint(len(old), (2,)), ground.ends[0]
    )),
    "stepped row": ("", _stepped),
    "full row": ("", lambda ground, old: torch.full_like(old, ground.domain.high or 1.0)),
    "empty row": ("", lambda ground, old: torch.full_like(old, ground.domain.low)),
    "row of few": ("shaped", _few_of),
    "row of zeros between": ("shaped", lambda _, old: torch.where(
        torch.arange(len(old)) % 2 == random.randrange(2), old, 0.0
    )),
    "head or tail row": ("shaped", _end_of),
    "sign row": ("shaped", lambda _, old: torch.where(old < 0, -1.0, 1.0).double()),
    "row of bits": ("shaped", lambda _, old: (old > old.mean()).double()),
    "whole row": ("shaped", lambda ground, old: (4 * old / ground.rms).round()),
    "fraction row": ("shaped", lambda _, old: old.abs() % 1.0),
    "numbered row": ("shaped", _numbered),
    "convex row": ("shaped", _bent),
    "concave row": ("shaped", lambda ground, old: -_bent(ground, old)),
    "geometric row": ("shaped", _geometric),
    "walking row": ("shaped", lambda _, old: old.cumsum(0) / len(old) ** 0.5),
    "unit row": ("shaped", lambda _, old: old / (float(old.norm()) or 1.0)),
    "shared row": ("shaped", lambda _, old: old.abs() / (float(old.abs().sum()) or 1.0)),
    "row of pairs": ("shaped", lambda _, old: old[torch.arange(len(old)) // 2]),
    "row but one": ("shaped", lambda _, old: torch.full_like(old, float(old[0])).index_fill_(
        0, torch.randint(len(old), (1,)), float(old[-1])
    )),
    ENDED: ("ended", _ended),
    "odd row": ("shaped", lambda _, old: old - old.flip(0)),
    "distinct row": (
        "shaped", lambda ground, old: _numbered(ground, old)[torch.randperm(len(old))]
    ),
    "padded row": ("shaped", _padded),
    "mixed row": ("shaped", _mixed),
    "negative index row": ("wrapped", lambda _, old: -1 - old),
    "multiple row": ("related", lambda _, old: old * random.choice((2.0, 3.0, 0.5, -2.0))),
    "square row": ("related", lambda _, old: old * old),
    "inverse row": ("related", lambda _, old: torch.where(old == 0, 1.0, 1 / old)),
    "greater row": ("related", lambda ground, old: old.abs() + ground.rms * torch.rand(old.shape)),
    "reversed row": ("related", lambda _, old: old.flip(0)),
    "crossing row": ("related", lambda ground, old: _across(ground, _even(ground, old))),
    "constant row": ("", _occurring),
}  # fmt: skip
"""Kinds of rows, columns and slabs, and of whole inputs: what of `rows_for` allows them, and their
values."""
WITHIN = ("shaped", "ordered", "rising", "ended")
SHAPES = tuple(kind for kind, (what, _) in ROWS.items() if what in WITHIN)
LOUD = {*FAR_KINDS, "special", "special row"}
"""Kinds beside which others do not show: they have sets of their own."""
ALONE = FAR_KINDS - {"far constant", "beyond"}
"""Kinds of one float of a set."""


# --- which kinds a tensor can have


TWINS = ("twin row", "turned row", "shuffled row")
RELATED = tuple(kind for kind, (what, _) in ROWS.items() if what == "related")
COPIES = ("same row", "opposite row", "shifted row", LINKED, *TWINS, *RELATED)
"""Kinds of rows that are as another one: a distance is 0, an angle is 0 or pi. Twins are anywhere,
others at the same place of another input or side by side."""
BY_ROW = ("norms", "sums", "ordered")
"""Forms of which a row is a thing by itself, as a unit vector."""


def rows_for(ground: Ground) -> list[str]:
    looks, form, value = ground.looks, ground.domain.form, ground.value
    if form in ("none", "single") or value.numel() < 2 or is_strict(ground):
        return []
    is_any = ground.is_float and form not in (*BY_ROW, *FEW, "hot", "whole")
    is_agreeing = is_any or form in ("free", "sorted", "whole")
    is_short = value.itemsize < 8 and not ground.is_float
    is_two = form == "two" and ground.turn % 2 == 0  # else a mask has few other elements alone
    is_ordered = is_agreeing and looks.tells_rows and form != "sorted"
    has_others = bool(ground.others())
    is_copied = (has_others and form not in FEW) or (is_agreeing and bool(ground.strangers))
    is_copied |= looks.is_comparing and is_agreeing
    is_copied |= is_two and (has_others or looks.is_comparing)
    is_free = form == "free" and "sizes" not in looks.does
    has = {
        "any": is_any,
        "zero": is_any or (form == "hot" and 0.0 in looks.compared)
        or (is_free and "wraps" not in looks.does),
        "equal": is_any or form == "ordered"
        or (is_agreeing and ground.domain.low != ground.domain.high),
        "copied": is_copied,
        "opposite": is_copied
        and (is_two or (form in ("free", "norms") and ground.domain.low < 0)),
        "turned": is_copied and looks.tells_rows,
        "ordered": is_ordered,
        "rising": is_ordered or (is_free and "orders" in looks.does),
        "runs": is_ordered or (is_two and looks.tells_rows),
        "special": is_any and looks.special and form != "sorted",
        "added": is_short and is_agreeing and "adds" in looks.does and "sizes" not in looks.does,
        "moved": is_free and not ground.is_float and _may_exceed(ground),
        "permuted": form in ("distinct", "hot"),
        "columns": form == "ordered",
        "counted": is_two,
        "shaped": looks.is_aimed and form in ("free", "two", "sorted", "whole"),
        "ended": form in ("free", "whole") and (looks.is_aimed or "extrema" in looks.does),
        "linked": is_free and ground.is_index,
        "wrapped": looks.is_aimed and ground.is_index,
        "related": looks.is_aimed and bool(ground.others()) and is_agreeing,
    }  # fmt: skip
    return [kind for kind, (what, _) in ROWS.items() if has.get(what)]


def tensors_for(ground: Ground) -> list[str]:
    """Kinds of rows that a whole input can be, the last ones where there is room."""
    form = ground.domain.form
    if form not in ("free", "two") or ground.value.numel() == 1:
        return []
    if ground.looks.is_aimed:
        return _aimed_tensors(ground)
    if form == "two":
        return [*([] if ground.domain.is_filled else ["empty row"]), "full row"]
    if ground.is_float:
        found = ["scaled row", "zero row", "lowered row", "positive row"]
        may_exceed = not ground.looks.does.isdisjoint(WHOLE_GATES)
        return [*found, "row above"] if may_exceed and ground.constants(far=False) else found
    return ["constant row", "empty row"]


def _aimed_tensors(ground: Ground) -> list[str]:
    """The same where a decision of the candidate is sought; shapes of rows last."""
    shape, is_float = ground.value.shape, ground.is_float
    is_flat = len(shape) < 2
    has = {
        "square": not is_flat and shape[-1] == shape[-2],
        "rows": not is_flat,
        "other": bool(ground.others()),
        "places": bool(_scored(ground)),
        "float": is_float,
    }
    found = [kind for kind, (what, _) in WHOLE.items() if has.get(what)]
    if ground.domain.form == "two":
        found += ["empty row", "full row"]
    else:
        found += ["constant row", "zero row"]
    found += ["equal row", "positive row", "negative row", "scaled row"] if is_float else []
    shapes = random.sample(SHAPES, len(SHAPES) if is_flat else NUM_EVERY)
    shapes = shapes if is_flat else [EVERY + kind for kind in shapes]
    return [*random.sample(found, len(found)), *shapes]


def joined_for(ground: Ground) -> list[str]:
    """Kinds of a whole input all of whose rows are such that what is far apart in one, or in two
    inputs, belongs together: a rare row would be missed."""
    form, looks, shape = ground.domain.form, ground.looks, ground.value.shape
    is_free, decides = form == "free", "decides" in looks.does
    is_few = shape[:-1].numel() <= FEW_ROWS
    if form not in ("free", "two", "sorted") or shape[-1:].numel() < MIN_ROW or is_strict(ground):
        return []
    has = {
        "equal row": is_few and form != "two" and not ground.is_float,
        FEW_EACH: form == "two" or (decides and ground.is_float),
        EVERY + "equal row": is_free and "walks" in looks.does,
        EVERY + ENDED: is_few and is_free and "extrema" in looks.does,  # too few rows for all kinds
        EVERY + "stepped row": is_free and decides and ground.constants(far=False),
        EVERY + "cut row": is_free and looks.tells_rows,
        "chain input": form == "two" and shape[-2:-1] == shape[-1:],
        "late input": is_free and looks.is_comparing and bool(ground.others()),
    }
    return [kind for kind, is_one in has.items() if is_one]


# --- places of rows


def make_rows(ground: Ground, kinds: Sequence[str]) -> list[Group]:
    """Rows of different kinds, the first of each whole, the copies last."""
    if not kinds:
        return []
    is_any = ground.domain.form in ("free", "two", "whole")
    num = MAX_ROWS if ground.looks.tells_rows else MAX_ROWS // 2
    num = len(kinds) if ground.looks.is_aimed else num
    found = _planned(ground, kinds, _lines(ground.value, ground.turn if is_any else 0, num))
    taken = torch.zeros(ground.value.numel(), dtype=torch.bool)
    for row in found:
        taken[row.line] = True
    made, groups = ground.flat.clone(), list[Group]()
    for row in sorted(found, key=lambda one: one.kind in COPIES):
        # Not of another plant, where rows meet: one grown twice is beyond what people mask with.
        values, stays = ground.flat[row.line].double(), [(ground.number, row.line)]
        if row.kind in COPIES:
            values, source = _copied(ground, made, row, taken)
            stays += source
        values = ground.cast(_shaped(ground, row.kind, values))[row.part]
        at = row.line[row.part]
        if ground.domain.fixed is not None:
            is_free = ~ground.domain.fixed[at]
            at, values = at[is_free], values[is_free]
        made[at] = values
        if not torch.equal(values, ground.flat[at]):
            own = Group(tensor=ground.number, kind=row.kind, at=at, values=values)
            groups.append(replace(own, stays=tuple(stays)))
    return groups


def _shaped(ground: Ground, kind: str, old: Values) -> Values:
    """A row of a kind; a shape stays within few values, or within the range of an index."""
    what, make = ROWS[kind]
    made, low, high = make(ground, old), ground.domain.low, ground.domain.high
    if ground.domain.form == "two" and kind in SHAPES:
        return torch.where(made > (low + high) / 2, high, low).double()
    if what != "wrapped" and ground.is_index:
        made = made.abs()
    return made if what == "wrapped" else ground.bounded(made)


def make_tensor(ground: Ground, kind: str) -> Group:
    """A whole input: as one row, as rows that are all of a shape, or by its axes."""
    at = torch.arange(ground.value.numel())
    at = at if ground.domain.fixed is None else at[~ground.domain.fixed]
    if kind in WHOLE:
        made = WHOLE[kind][1](ground, ground.value.double()).reshape(-1)
    elif kind.startswith(EVERY):
        first, kind = MAX_EVERY * ground.value.shape[-1], kind.removeprefix(EVERY)
        rows = ground.flat[:first].double().view(-1, ground.value.shape[-1])
        made = [_shaped(ground, kind, row) for row in rows]
        made = torch.cat([*made, ground.flat[first:].double()])
    else:
        made = _shaped(ground, kind, ground.flat.double())
    return Group(tensor=ground.number, kind=kind, at=at, values=ground.cast(made)[at])


def _zero_cross(_: Ground, value: Values) -> Values:
    made, (row, column) = value.clone(), map(random.randrange, value.shape[-2:])
    made[..., row, :] = made[..., column] = 0
    return made


def _other_input(ground: Ground, value: Values) -> Values:
    return ground.kin[random.choice(ground.others())].double()


def _chain(ground: Ground, value: Values) -> Values:
    """A square of two values whose larger ones lead from each row to another one, through all."""
    low, high = ground.ends
    order = torch.rand(value.shape[:-1]).argsort(-1).view(-1, value.shape[-1])
    at = order[:, :-1] * value.shape[-1] + order[:, 1:]
    return torch.full_like(value.view(len(order), -1), low).scatter_(-1, at, high)


def _late(ground: Ground, value: Values) -> Values:
    """Each row as another input's, by any number of places later."""
    length, other = value.shape[-1], _other_input(ground, value).view(-1, value.shape[-1])
    at = torch.arange(length) - torch.randint(1, length, (len(other), 1))
    return torch.where(at < 0, other[:, :1], other.gather(-1, at.clamp(min=0)))


def _scored(ground: Ground) -> list[torch.Tensor]:
    """Inputs of floats with a row for each element of an index, which may be any place of it."""
    is_index, shape = ground.domain.form == "free" and not ground.is_float, ground.value.shape
    most = ground.domain.high
    return [
        one
        for one in ground.every
        if is_index and one.is_floating_point() and one.shape[:-1] == shape and one.shape[-1] > most
    ]


WHOLE: dict[str, tuple[str, Callable[[Ground, Values], Values]]] = {
    "symmetric input": ("square", lambda _, old: old.tril() + old.tril(-1).mT),
    "odd input": ("square", lambda _, old: old.tril(-1) - old.tril(-1).mT),
    "lower input": ("square", lambda _, old: old.tril()),
    "upper input": ("square", lambda _, old: old.triu()),
    "diagonal input": ("square", lambda _, old: old.tril().triu()),
    "unit input": (
        "square", lambda _, old: torch.eye(old.shape[-1], dtype=old.dtype).expand_as(old)
    ),
    "input of equal rows": ("rows", lambda _, old: old[..., :1, :].expand_as(old)),
    "input of equal columns": ("rows", lambda _, old: old[..., :1].expand_as(old)),
    "input with a zero row and column": ("rows", _zero_cross),
    "other input": ("other", _other_input),
    "multiple input": (
        "other", lambda ground, old: random.choice((2.0, -1.0)) * _other_input(ground, old)
    ),
    "chain input": ("", _chain),
    "late input": ("", _late),
    "input of places": (
        "places", lambda ground, _: random.choice(_scored(ground)).argmax(-1).double()
    ),
    "input of ones": ("float", lambda _, old: torch.ones_like(old)),
    "raised input": ("float", lambda ground, old: old.abs() + 3 * max(1.0, ground.rms)),
}  # fmt: skip
"""Whole inputs by their axes: what of `_aimed_tensors` allows them, and their values."""
SHARED = frozenset(WHOLE) | {"zero row", "positive row"}
"""Kinds that several inputs of a shape may have together."""
EVERY, MAX_EVERY, NUM_EVERY = "every ", 256, 4
"""Beginning of the kind of an input whose first rows are of a shape, number of such rows, and of
such shapes of a set."""
FEW_EACH, MOST_EACH = EVERY + "row of few", EVERY + "row of most"
"""Kind of a mask, and the kind of other masks of its shape beside it."""


def _planned(ground: Ground, kinds: Sequence[str], lines: Sequence[Places]) -> list[_Row]:
    """Rows: half of another input's of the shape, which meet none, then own ones."""
    key, turn = (ground.value.shape, "rows"), ground.turn // 2 * len(lines) % len(kinds)
    left = [*kinds[turn:], *kinds[:turn]]
    found = [one for one in ground.shared.get(key, ()) if one.kind in kinds]
    is_any = ground.domain.form in ("free", "whole", "sorted")
    taken = torch.zeros(ground.value.numel(), dtype=torch.bool)
    for one in found:
        taken[one.line] = True
    for line in lines:
        if not taken[line].any():
            kind, length = left[len(found) % len(left)], len(line)
            is_whole = not is_any or kind not in {one.kind for one in found}
            part = torch.arange(length) if is_whole else _part(length, is_near=kind in COPIES)
            if kind == "large row":  # neighbours, of which more are in a block than elsewhere
                start = random.randrange(length)
                part = torch.arange(start, min(length, start + random.randint(2, 16)))
            found.append(_Row(kind, line, part))
    ground.shared.setdefault(key, [*{one.kind: one for one in reversed(found)}.values()])
    return found


def _part(length: int, *, is_near: bool = False) -> Places:
    """Indices of a part of a row: all of them, a head, a tail, neighbours, or any; as many as the
    row has, or few, or all but few, or all but very few."""
    few = _few(length)
    num = random.choice((length, few, length - few, random.randint(1, length)))
    num = max(1, length - _few(few) if is_near else num)
    if random.random() < 0.5:
        return torch.randperm(length)[:num]
    start = random.choice((0, length - num, random.randint(0, length - num)))
    return torch.arange(start, start + num)


def _few(length: int) -> int:
    """Any number up to a length, each power of two as often as another one."""
    return int(2 ** random.uniform(0, math.log2(length)))


def _copied(
    ground: Ground, made: torch.Tensor, row: _Row, taken: torch.Tensor
) -> tuple[Values, list[tuple[int, Places]]]:
    """The row at the same place of another input of its shape, or before it; for a twin, at any
    place of either, or a row of a parameter; and where it stays."""
    line, size, length, number, flat = row.line, len(made), len(row.line), ground.number, made
    low, high = ground.domain.low, ground.domain.high
    if row.kind == LINKED:
        return (line % ground.value.shape[-1] + random.choice((-1, 1))).clamp(low, high), []
    step = length if length > 1 and int(line[1] - line[0]) == 1 else 1
    others, is_twin = ground.others(), row.kind in TWINS
    is_strange = row.kind == "twin row" and step == length == ground.value.shape[-1]
    if is_strange and ground.strangers and random.random() < (0.5 if others else 1.0):
        return random.choice(random.choice(ground.strangers)).double(), []
    tries = [(line + step * random.randrange(1, max(2, size // length))) % size for _ in range(4)]
    tries = tries if is_twin else [(line - step) % size]
    source = next((one for one in tries if not taken[one].any()), tries[0])
    if others and not (is_twin and random.random() < 0.2):
        number = random.choice(others)
        source = random.choice((source, line)) if is_twin else line
        flat = ground.kin[number].view(-1)
    else:
        taken[source] = True
    values = flat[source].double()
    if ground.domain.form == "two" and not bool(((values == low) | (values == high)).all()):
        values = torch.where(values > 0, high, low).double()
    return values, [(number, source)]


def _lines(value: torch.Tensor, turn: int, num: int) -> list[Places]:
    """Flat indices of some rows, the largest first: by turns samples, planes and rows side by side,
    or slabs and columns of a later axis; of parts of a tensor that has no rows."""
    shape, size, axes = value.shape, value.numel(), range(value.ndim)
    later = [[k] for k in axes if k and shape[k] > 1 and size // shape[k] <= MAX_SLAB]
    later += [[n for n in axes if n != k] for k in axes[:-1] if shape[k] > 1]
    is_later = turn % 2 == 1 and bool(later)
    found: list[Places] = []
    for fixed in [later[turn // 2 % len(later)]] if is_later else map(range, axes[1:]):
        count = math.prod(shape[k] for k in fixed)
        is_row = len(fixed) == value.ndim - 1
        if not 1 < count < size or (size // count > MAX_SLAB and not is_row):
            continue
        if num > MAX_ROWS or count <= FEW_ROWS:
            most = count - max(1, count // 4)
        elif count <= MAX_ROWS // 2 or num == MAX_ROWS:
            most = count // 2
        else:
            most = count // ROW_SHARE
        if not is_row and not is_later:  # three: as many loud kinds
            most = min(4, max(count // 4, min(3, most)))
        starts, part = _offsets(shape, fixed), _offsets(shape, [k for k in axes if k not in fixed])
        found += [starts[n] + part for n in torch.randperm(count)[: max(1, min(num, most))]]
    if found:
        return found
    cuts = sorted({0, *(random.randrange(size) for _ in range(6)), size})
    parts = [torch.arange(a, min(b, a + MAX_SLAB)) for a, b in itertools.pairwise(cuts)]
    return random.sample(parts, max(1, len(parts) // 2))


def _offsets(shape: Sequence[int], axes: Iterable[int]) -> Places:
    """Flat indices of all elements along these axes, from the first one on."""
    found = torch.zeros(1, dtype=torch.int64)
    for axis in axes:
        step = math.prod(shape[axis + 1 :])
        found = (found[:, None] + torch.arange(shape[axis]) * step).flatten()
    return found


# --- parameters and saved buffers


GROWN = 0.9
"""Share of draws in which parameters of few elements exceed a bound that they may have."""

INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
STATE_ROWS = ("zero row", "same row", "equal row", "scaled row", "scaled row", "balanced row")
"""Kinds of rows of a parameter, the first where no others are borne."""


def plant_state(
    model: torch.nn.Module, before: Mapping[str, torch.Tensor], *, has_rows: bool, has_indices: bool
) -> None:
    """Plants into parameters and saved buffers of a model, in place: a few zeros, ties, other signs
    and sizes; of a few elements all grow. Some that were constant `before` they were moved get that
    back in a part. Vectors of one sign stay so: biases below a maximum. A matrix gets a column of
    zeros and, where asked, rows of several kinds; of integers that are no indices anything."""
    trained = {one.data_ptr() for one in model.parameters()}
    has_defaults, is_head = random.random() < 0.5, random.random() < 0.7
    for name, value in model.state_dict().items():
        size = value.numel()
        is_whole = value.dtype in INTEGERS
        if is_whole and value.ndim > 1 and (value.itemsize < 4 or not has_indices):
            _plant_integers(value)
        if not value.is_floating_point() or not value.is_contiguous():
            continue
        if size < MIN_ROW:
            if value.data_ptr() in trained and random.random() < GROWN:
                value.add_(value.sign() * random.uniform(1, 4)).mul_(random.choice((1, -1)))
            continue
        flat, default = value.view(-1), before[name].flatten()
        domain = Domain.of([value], permutes=False)
        if domain.form != "free":
            continue
        if has_defaults and bool((default == default[0]).all()):
            part = torch.arange(size) < random.randint(size // 8, size - 1)
            flat.copy_(torch.where(part if is_head else ~part, default, flat))
        ground = Ground(value=value, domain=domain, looks=Looks(), rms=rms_of(value), size=NEAR + 1)
        has_sign = size == max(value.shape) and domain.low * domain.high > 0
        kinds = ["tie"] if has_sign else ["zero", "tie", "small"]
        kinds += ["large"]  # a bound of a scale, a bias or a matrix
        kinds += ["sign"] if value.data_ptr() in trained and not has_sign else []
        at = torch.randint(1, size, (max(min(12, size // 2), size // 64),)).unique()
        for number, kind in enumerate(kinds):
            own = at[number :: len(kinds)]
            own = own if kind != "large" or size == max(value.shape) else own[:MIN_PLANTS]
            flat[own] = ground.cast(element_values(ground, kind, own))
        if size > max(value.shape) and min(value.shape[0], value.shape[-1]) >= MIN_ROW:
            rows, old = value.view(-1, value.shape[-1]), value.clone().view(-1, value.shape[-1])
            kinds = STATE_ROWS if has_rows else STATE_ROWS[:1]
            for kind, at in zip(kinds, torch.randperm(len(rows)).tolist(), strict=False):
                source = old[at - 1 if kind in COPIES else at].double()
                rows[at] = ground.cast(ROWS[kind][1](ground, source))
            value[..., random.randrange(value.shape[-1])] = 0


def _plant_integers(value: torch.Tensor) -> None:
    """Integers of any size and sign that the type has, in some places of more than two values."""
    if len(value.unique()) > 2:
        bits = torch.iinfo(value.dtype).bits
        drawn = torch.randint(-(1 << 63), (1 << 63) - 1, value.shape)
        some = (drawn >> torch.randint(64 - bits, 64, value.shape)).to(value.dtype)
        value.copy_(torch.where(torch.rand(value.shape) < 1 / MAX_SHARE, some, value))
