"""The table of plants: values that replace a secret few elements of an input.

Called by sets.py. A set is the problem's own inputs with some of these, at places that no sample
foresees: one at least in each block of BLOCK elements and in each row, the first and the last of an
axis in some rows; and rows (`rows.py`). Half of the places are the same in all inputs of a shape. A
line of a table makes the values of one kind. Whatever holds of an input in every draw holds of a
planted one, too (`domain.py`): rows stay sorted, a triangle stays one.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.judge.wide.domain import Domain
    from forge.evalpool.judge.wide.sought import Looks


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
"""Powers of two by which a large plant exceeds the rms, by step: as far as the reference bears."""
NEAR = 2
"""The first step of what is asked for in the problem's own types, too."""

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
        """[elements]"""
        return self.value.view(-1)

    @property
    def is_float(self) -> bool:
        """True for floats."""
        return self.value.is_floating_point()

    @property
    def is_index(self) -> bool:
        """True for integers that must not be negative: torch takes such an index, too."""
        return not self.is_float and "indexes" in self.looks.does and self.domain.low >= 0

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
    """The ends of the range."""
    low, high = ground.domain.low, ground.domain.high
    if ground.domain.form == "two":  # the other one
        low, high = (0.0, high or 1.0) if low == high else (low, high)
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
        "special": is_any and looks.special and not is_sorted,
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
        cuts = torch.stack([torch.randperm(span - 1)[: length - 2].sort().values + 1 for _ in rows])
        cuts = torch.nn.functional.pad(torch.nn.functional.pad(cuts, (1, 0)), (0, 1), value=span)
        made = cuts.diff(dim=-1).double()
    made = torch.cat([rows[:, :1], rows[:, :1] + made.cumsum(-1)], -1)
    if not is_strict(ground):  # a total that is less than all
        made = made.clamp(max=made[:, -random.randint(2, max(2, length // 4)), None])
    return torch.arange(made.numel()), made.flatten()
