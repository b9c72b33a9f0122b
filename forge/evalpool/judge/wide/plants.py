"""The table of plants: values that replace a secret few elements of an input.

Called by sets.py. A set is the problem's own inputs with some of these, at places that no sample
foresees: one at least in each block of BLOCK elements and in each row, the first and the last of an
axis in some rows, and some whole rows, columns or slabs (or all of one but its head or its tail).
A line of a table makes the values of one kind. Whatever holds of an input in every draw holds of a
planted one, too (`domain.py`): rows stay sorted, sums stay one, a triangle stays one.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.wide.domain import MIN_ROW, Domain
from forge.evalpool.judge.wide.sought import Looks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


BLOCK = 512
"""One plant at least in so many elements."""
MAX_SHARE = 16
"""At most one element in so many, beside whole rows."""
MIN_PLANTS = 4
"""Least number of plants of each kind where there are so many places."""
NUM_LINES = 8
"""Lines of each axis of which the first or last element is planted."""
MAX_ROWS, ROW_SHARE, MAX_SLAB = 16, 3, 1 << 18
"""Whole rows of a set: at most so many, one in so many, and elements of each."""
WHOLE = 0.7
"""Share of rows that are planted as a whole, not but for their head or tail; of each kind the first
is."""
MIN_NUMBERS, MAX_FIELD = 256, 256
"""Integers that are no lengths; largest range that may be a field of bits."""
MAX_VALUES = 12
"""Different values of a group that are tried one by one."""
GROWN = 0.7
"""Share of draws in which parameters of few elements exceed a bound that they may have."""
EQUAL = 0.7
"""Share of sorted inputs in which distances are joined to one."""
FAINT = 2.0**-11
"""Factor of a whole input: a constant may bound something that all elements make."""
FAR = 1100.0
"""Distance of a row that is lowered or raised: exp of it vanishes or overflows in float64."""
FAR_IN_SINGLE = 100.0
"""The same in float32, in which a variance in one pass has three digits left there."""
FAR_CONSTANT = 64.0
"""Constants from so many times the rms on are loud."""

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


@dataclass(slots=True, kw_only=True)
class Ground:
    """A tensor of a set in which something is planted."""

    value: torch.Tensor
    """Contiguous, with the plants so far."""
    domain: Domain
    looks: Looks
    others: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    """Other inputs of its shape and type."""
    strangers: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    """Other inputs of its type, of other shapes."""
    shared: dict[Any, Places] = field(default_factory=dict[Any, Places])
    """Places of constants, by shape: a reference may look for them in two tensors at once."""
    taken: torch.Tensor | None = None
    """[elements] True where whole rows are planted, into which nothing else goes."""
    turn: int = 0
    """Number of the set, by which rows of another axis are planted."""
    size: int = 0
    """Steps by which plants have grown (or, below 0, shrunk)."""
    rms: float = 1.0
    """Root mean square before anything is planted."""
    is_rough: bool = False
    """True if the set is asked for in the problem's own types, too."""

    @property
    def flat(self) -> torch.Tensor:
        """[elements]"""
        return self.value.view(-1)

    def movable(self, at: Places) -> Places:
        """The flat indices at which something may be planted, in random order."""
        for mask in (self.domain.fixed, self.taken):
            at = at if mask is None else at[~mask[at]]
        return at[torch.randperm(len(at))]

    def cast(self, values: Values) -> Values:
        """Values in the tensor's type, far from where it overflows."""
        if self.value.is_floating_point():
            most = torch.finfo(self.value.dtype).max / 64
            inside = values.clamp(-most, most)
            return torch.where(values.isfinite(), inside, values).to(self.value.dtype)
        if self.value.dtype is not torch.bool:
            values = values.clamp(
                *(getattr(torch.iinfo(self.value.dtype), n) for n in ("min", "max"))
            )
        return values.to(self.value.dtype)

    def constants(self, *, far: bool) -> list[float]:
        """Constants that the reference compares with, of a sign that inputs have."""
        most = FAR_CONSTANT * max(1.0, self.rms)
        signed = [one for one in self.looks.constants if one > 0 or self.domain.low < 0]
        return [one for one in signed if (abs(one) > most) is far]


Row = tuple["Ground", Values]


def _signs(shape: torch.Size) -> Values:
    return (torch.rand(shape) < 0.5).double() * 2 - 1


def _sign(ground: Ground, old: Values) -> Values:
    """Another sign, and in every second place up to 8 times as much, of either sign."""
    turned = torch.where(old == 0, -ground.rms / 8 * (1 + torch.rand(old.shape)), -old)
    if ground.domain.form != "free":
        return turned
    grown = turned * _signs(old.shape) * (3 * torch.rand(old.shape)).exp2()
    return torch.where(torch.rand(old.shape) < 0.5, turned, grown)


LARGE = ((1.0, 3.0), (3.0, 6.0), (6.0, 12.0), (12.0, 20.0), (20.0, 30.0))
"""Powers of two by which a large plant exceeds the rms, by step; the third is where it begins."""


def _large(ground: Ground, old: Values) -> Values:
    low, high = LARGE[min(max(0, 2 + ground.size), len(LARGE) - 1)]
    if ground.value.itemsize < 4:
        low, high = min(low, 2.0), min(high, 4.0)
    power = high - (high - low) * torch.rand(old.shape, dtype=torch.float64) ** 2
    sign = 1.0 if ground.domain.low >= 0 else -1.0 if ground.domain.high <= 0 else _signs(old.shape)
    return _power_of_2(power) * max(1.0, ground.rms) * sign


def _small(ground: Ground, old: Values) -> Values:
    power = torch.randint(6, 12 if ground.value.itemsize < 4 else 40, old.shape).double()
    return torch.where(old == 0, ground.rms, old) * _power_of_2(-power)


def _power_of_2(exponent: Values) -> Values:
    """torch compiles `exp2` on a card when it is first called, which takes 0.2 s."""
    return torch.pow(2.0, exponent)


def _constant(ground: Ground, old: Values, *, far: bool = False) -> Values:
    """Constants that the reference compares with, and values on both sides of them."""
    values = _chosen([*ground.constants(far=far), *([] if far else [1.0])], old)
    step = values.abs() * torch.finfo(ground.value.dtype).eps
    side = _chosen([0.0, 0.0, 1.0, -1.0], old)
    apart = values * (1 + _signs(old.shape) * (0.05 + torch.rand(old.shape)))
    return torch.where(torch.rand(old.shape) < 0.6, values + step * side, apart)


def _special(ground: Ground, old: Values) -> Values:
    values = torch.tensor(ground.looks.special, dtype=torch.float64)
    return values[torch.randint(len(values), old.shape)]


def rms_of(value: torch.Tensor) -> float:
    """Root mean square of the finite elements at the beginning; 1 for zeros."""
    flat = value.reshape(-1)[: 1 << 16].double().nan_to_num(0.0, 0.0, 0.0)
    return float(flat.square().mean().sqrt()) or 1.0


ELEMENTS: dict[str, Callable[[Ground, Values], Values]] = {
    "large": _large,
    "special": _special,
    "far constant": lambda ground, old: _constant(ground, old, far=True),
    "constant": _constant,
    "sign": _sign,
    "zero": lambda _, old: torch.zeros_like(old) * _signs(old.shape),  # of either sign
    "small": _small,
}
"""Values by kind, of single floats, in the order of planting: what hides others comes first."""


def _beyond(ground: Ground, old: Values) -> Values:
    """Values of another sign, or beyond the range."""
    power = 21 if ground.value.itemsize < 8 else 36
    grown = old * _power_of_2(torch.randint(1, power, old.shape).double()) + torch.randint(
        0, 2, old.shape
    )
    if ground.looks.has_indices and ground.domain.low >= 0:  # torch takes a negative index, too
        return grown
    return torch.where(torch.rand(old.shape) < 0.5, -old - 1, grown)


def _chosen(values: Sequence[float], old: Values) -> Values:
    """Repeats the values in random order, each as often as another one."""
    turns = (torch.randperm(old.numel()) + random.randrange(len(values))) % len(values)
    return torch.tensor(values, dtype=torch.float64)[turns].view(old.shape)


def _ends_of(domain: Domain) -> list[float]:
    return [domain.low, domain.high, *([0.0] if domain.low == 1 else [])]


def _within(ground: Ground, old: Values) -> Values:
    low, high = int(ground.domain.low), int(ground.domain.high)
    return torch.randint(min(low, 1) if low == high else low, high + 1, old.shape).double()


INTEGERS: dict[str, Callable[[Ground, Values], Values]] = {
    "beyond": _beyond,
    "edge": lambda ground, old: _chosen(_ends_of(ground.domain), old),
    "constant": lambda ground, old: _chosen(ground.looks.integers, old),
    "ignored": lambda ground, old: _chosen(ground.looks.ignored, old),
    "within": _within,
}
"""The same of integers."""


def _bound(ground: Ground, old: Values, side: float) -> Values:
    """A whole row above a constant that the reference compares with, below it, or next to it."""
    constant = random.choice(ground.constants(far=False) or [1.0])
    noise = torch.rand(old.shape, dtype=torch.float64)
    if not side:
        return constant * (1 + (noise - 0.5) / 4)  # long products stay, and one-pass variances
    is_positive = side < 0 and ground.domain.low >= 0
    return constant + side * noise * (abs(constant) if is_positive else ground.rms)


def _scaled(ground: Ground, old: Values) -> Values:
    """A whole row next to 0, or of a size next to a constant."""
    small = [one for one in ground.looks.constants if 0 < one < ground.rms]
    if small and random.random() < 0.5:
        size = random.choice((old.abs().max(), old.norm(), old.square().mean().sqrt()))
        return old * (random.choice(small) * 2.0 ** random.uniform(-4, 1) / (float(size) or 1.0))
    return old * 2.0 ** -random.randint(4, 12 if ground.value.itemsize < 4 else 40)


def _burst(ground: Ground, old: Values) -> Values:
    """A few neighbours that are large."""
    length = random.randint(2, 16)
    start = random.randrange(max(1, len(old) - length))
    made = old.clone()
    made[start : start + length] = _large(ground, made[start : start + length])
    return made


def _moved(ground: Ground, old: Values, sign: float) -> Values:
    is_small = ground.value.dtype is torch.float16
    far = random.choice((FAR / 4, 5 * FAR)) if is_small else FAR
    if ground.is_rough:
        far = FAR / 4 if is_small else FAR_IN_SINGLE
    return old + sign * far * max(1.0, ground.rms) * random.uniform(1.0, 1.5)


def _unit(ground: Ground, old: Values) -> Values:
    """Values next to 1, of which long products do not vanish."""
    return 1 + torch.rand(old.shape, dtype=torch.float64) / 1024


def _equal(ground: Ground, old: Values) -> Values:
    """Equal values; of floats powers of two, whose sums are exact: a deviation in one pass is 0."""
    value = float(random.choice(ground.flat))
    if ground.value.is_floating_point() and value and math.isfinite(value):
        value = math.copysign(2.0 ** round(math.log2(abs(value))), value)
    return torch.full_like(old, value)


ROWS: dict[str, Callable[[Ground, Values], Values]] = {
    "zero row": lambda _, old: torch.zeros_like(old),
    "equal row": _equal,
    "negative row": lambda ground, old: -torch.where(old == 0, ground.rms / 8, old).abs(),
    "positive row": lambda ground, old: torch.where(old == 0, ground.rms / 8, old).abs(),
    "lowered row": lambda ground, old: _moved(ground, old, -1.0),
    "raised row": lambda ground, old: _moved(ground, old, 1.0),
    "scaled row": _scaled,
    "row above": lambda ground, old: _bound(ground, old, 1.0),
    "row below": lambda ground, old: _bound(ground, old, -1.0),
    "row near": lambda ground, old: _bound(ground, old, 0.0),
    "unit row": _unit,
    "same row": lambda _, old: old,  # of another input
    "burst": _burst,
    "special row": _special,
    "full row": lambda ground, old: torch.full_like(old, ground.domain.high or 1.0),
    "empty row": lambda ground, old: torch.full_like(old, ground.domain.low),
}
"""Values by kind, of whole rows, columns and slabs."""
BY_ROW = ("norms", "sums", "ordered")
"""Forms of which a row is a thing by itself, as a unit vector."""


def _occurring(ground: Ground, old: Values) -> float:
    """A number that the reference compares integers with and that occurs among them; else any."""
    found = [
        one for one in {*ground.looks.integers, *ground.looks.ignored} if bool((old == one).any())
    ]
    return random.choice(found or [float(random.choice(ground.flat))])


TENSORS: dict[str, Callable[[Ground, Values], Values]] = {
    "faint tensor": lambda _, old: old * FAINT,
    "zero tensor": lambda _, old: torch.zeros_like(old),
    "negative tensor": lambda ground, old: torch.full_like(old, -ground.rms),
    "positive tensor": lambda ground, old: torch.where(old == 0, ground.rms / 8, old).abs(),
    "full tensor": lambda ground, old: torch.full_like(old, ground.domain.high or 1.0),
    "empty tensor": lambda ground, old: torch.full_like(old, ground.domain.low),
    "constant tensor": lambda ground, old: torch.full_like(old, float(_occurring(ground, old))),
}
"""Values by kind, of a whole input: the negative one is of equal values."""
LOUD = {
    "large",
    "beyond",
    "special",
    "far constant",
    "lowered row",
    "raised row",
    "burst",
    "special row",
}
"""Kinds beside which others do not show: they have sets of their own."""


def elements_for(ground: Ground) -> list[str]:
    """Kinds of single elements that can be planted in a tensor, in the order of planting."""
    looks, value, form = ground.looks, ground.value, ground.domain.form
    special = {
        "none": [], "single": ["single"], "distinct": ["swap"], "hot": ["swap"],
        "sorted": ["between"], "symmetric": ["congruent"], "sums": ["swap", "mass"],
        "norms": ["swap", "sign"], "whole": ["zero", "tie", "sign", "beyond"],
        "two": ["other value"], "ordered": ["other row"],
    }  # fmt: skip
    if form in special:
        return special[form]
    others = ["other"] if looks.is_comparing and (ground.others or ground.strangers) else []
    is_equal = ground.domain.low == ground.domain.high  # where a tie only takes plants back
    if not value.is_floating_point():
        found = {"within"} if is_equal else {"edge", "tie"}
        found |= {*others, *(["edge"] if ground.domain.low == 1 else [])}
        found |= {"constant"} if looks.integers else set()
        found |= {"ignored"} if looks.ignored else set()
        found |= {"beyond"} if _may_exceed(ground) else set()
        return [kind for kind in (*INTEGERS, "tie", "other") if kind in found]
    kinds = [*ELEMENTS, *([] if is_equal else ["tie"]), *others]
    left_out = {*([] if looks.special else ["special"])}
    left_out |= set() if ground.constants(far=True) else {"far constant"}
    return [kind for kind in kinds if kind not in left_out]


def _may_exceed(ground: Ground) -> bool:
    """True for integers that are no lengths or fields of bits, and no sizes of memory: of both
    signs, or many. The reference refuses an index."""
    value, domain = ground.value, ground.domain
    most = domain.high + 1
    is_field = domain.low == 0 and most <= MAX_FIELD and math.log2(most).is_integer()
    is_long = value.numel() >= MIN_NUMBERS or (value.itemsize == 1 and value.ndim > 1)
    return not ground.looks.has_sizes and (domain.low < 0 or (is_long and not is_field))


def rows_for(ground: Ground) -> list[str]:
    """Kinds of whole rows that can be planted."""
    looks, form = ground.looks, ground.domain.form
    if ground.value.numel() < 2 or form not in ("free", "two", "whole"):
        return ["same row"] if form in BY_ROW and ground.others else []
    if form == "two":
        return ["full row", "empty row"]
    if form == "whole" or not ground.value.is_floating_point():
        return [] if ground.domain.low == ground.domain.high else ["equal row"]
    left_out = {"full row", "empty row", *([] if looks.special else ["special row"])}
    left_out |= set() if looks.is_product else {"unit row"}
    left_out |= set() if ground.others else {"same row"}
    return [kind for kind in ROWS if kind not in left_out]


def tensors_for(ground: Ground) -> list[str]:
    """Kinds of whole inputs that can be planted, the last ones where there is room."""
    form = ground.domain.form
    if form == "two":
        return ["empty tensor", "full tensor"]
    if form != "free":
        return []
    if ground.value.is_floating_point():
        found = ["faint tensor", "zero tensor", "negative tensor", "positive tensor"]
        return random.sample(found, 4)
    return ["constant tensor", "empty tensor"]


def parts_of(group: Group) -> list[Group]:
    """The group by its values, or by their signs if there are many, where not all are borne."""
    every = group.values.unique()
    chosen = [group.values == one for one in every] if len(every) <= MAX_VALUES else []
    chosen = chosen or [group.values < 0, group.values >= 0]
    return [
        replace(group, at=group.at[one], values=group.values[one]) for one in chosen if one.any()
    ]


def make_rows(ground: Ground, tensor: int, kinds: Sequence[str]) -> list[Group]:
    """Whole rows of different kinds."""
    turn = ground.turn % max(1, len(kinds))
    left = [*kinds[turn:], *kinds[:turn]]
    groups: list[Group] = []
    lines = _blocks(ground.value) if ground.domain.form in BY_ROW else None
    for number, line in enumerate((lines or _lines(ground.value, ground.turn)) if left else []):
        kind, at = left[number % len(left)], line
        if number >= len(left) and random.random() > WHOLE and len(line) > 1:
            part = max(1, len(line) >> random.randint(1, 8))
            at = random.choice((line[part:], line[: len(line) - part]))
        at = at if ground.domain.fixed is None else at[~ground.domain.fixed[at]]
        if len(at):
            values = ROWS[kind](
                ground, _same(ground, at) if kind == "same row" else ground.flat[at].double()
            )
            groups.append(Group(tensor=tensor, kind=kind, at=at, values=ground.cast(values)))
    return groups


def _same(ground: Ground, at: Places) -> Values:
    """The same row of another input, or its opposite: a distance is 0, an angle is 0 or pi."""
    row = random.choice(ground.others).view(-1)[at].double()
    is_signed = ground.domain.form in ("free", "norms") and ground.domain.low < 0
    return -row if is_signed and random.random() < 1 / 3 else row


def _lines(value: torch.Tensor, turn: int) -> list[Places]:
    """Flat indices of some rows, which do not meet: by turns samples, planes and rows side by side,
    or slabs and columns of a later axis; of parts of a tensor that has no rows."""
    shape, size = value.shape, value.numel()
    if value.ndim > 1 and (found := _across(value, turn // 2) if turn % 2 else _blocks(value)):
        return found
    if value.ndim > 1 and shape[-1] > 1:
        return _blocks(value)
    cuts = sorted({0, *(random.randrange(size) for _ in range(6)), size})
    parts = [torch.arange(a, min(b, a + MAX_SLAB)) for a, b in itertools.pairwise(cuts)]
    return random.sample(parts, max(1, len(parts) // 2))


def _blocks(value: torch.Tensor) -> list[Places]:
    """Samples, planes and rows: elements side by side, the largest first."""
    shape = value.shape
    taken = torch.zeros(math.prod(shape[:-1]), dtype=torch.bool)
    found: list[Places] = []
    for axis in range(1, value.ndim):
        count, length = math.prod(shape[:axis]), math.prod(shape[axis:])
        is_last = axis == value.ndim - 1
        if count < (2 if is_last else ROW_SHARE) or not 1 < length <= MAX_SLAB:
            continue
        blocks = taken.view(count, -1)
        share = 2 if count <= MAX_ROWS else ROW_SHARE
        free = (~blocks.any(-1)).nonzero()[:, 0]
        num = min(4, max(count // 4, min(3, count // 2)))  # three: as many loud kinds
        num = max(1, min(MAX_ROWS, count // share)) if is_last else num
        for index in free[torch.randperm(len(free))][:num].tolist():
            blocks[index] = True
            found.append(torch.arange(index * length, (index + 1) * length))
    return found


def _across(value: torch.Tensor, turn: int) -> list[Places]:
    """Slabs of one index on a later axis, or lines along an axis that is not the last."""
    shape, size = value.shape, value.numel()
    inner = [math.prod(shape[axis + 1 :]) for axis in range(value.ndim)]
    slabs = [(n, inner[k]) for k, n in enumerate(shape) if k and n > 1 and size // n > 1]
    lines = [(n, -inner[k]) for k, n in enumerate(shape[:-1]) if k and n > 1]
    options = [one for one in slabs if size // one[0] <= MAX_SLAB] + lines
    if not options:
        return []
    length, step = options[turn % len(options)]
    count = length if step > 0 else size // length
    found: list[Places] = []
    for index in torch.randperm(count)[: min(MAX_ROWS, max(1, count // ROW_SHARE))].tolist():
        if step > 0:
            outer = torch.arange(size // (length * step))[:, None] * (length * step)
            found.append((outer + index * step + torch.arange(step)).flatten())
        else:
            start = index // -step * (-step * length) + index % -step
            found.append(start - torch.arange(length) * step)
    return found


def make_elements(ground: Ground, tensor: int, kinds: Sequence[str]) -> list[Group]:
    """Plants of several kinds in one tensor, each at places of its own."""
    plain = [kind for kind in kinds if kind in _table(ground) or kind in ("tie", "other")]
    at = _places(ground, num_kinds=len(plain)) if plain else ground.flat[:0].long()
    groups: list[Group] = []
    for kind in kinds:
        if kind not in plain:
            own, values = _STRUCTURED[kind](ground)
        else:
            own = at[plain.index(kind) :: len(plain)]
            if len(own) < MIN_PLANTS:
                more = torch.randint(ground.value.numel(), (2 * MIN_PLANTS,))
                own = torch.cat([own, ground.movable(more)[:MIN_PLANTS]]).unique()
            if kind in ("large", "edge", "beyond"):
                is_loud = (
                    kind == "large" and ground.turn % 2 == 1
                )  # else whole rows stay as they are
                own = torch.cat([own, _ends(ground, is_loud=is_loud)]).unique()
            if kind.endswith("constant") and ground.value.is_floating_point():
                num = min(6 * len(ground.looks.constants), ground.value.numel() // MAX_SHARE)
                own = torch.cat([own, torch.randint(ground.value.numel(), (num,))]).unique()
                own = ground.movable(ground.shared.setdefault(ground.value.shape, own))
            elif kind == "constant":
                num = min(2 * len(ground.looks.integers), ground.value.numel() // 4)
                own = torch.cat([own, torch.randint(ground.value.numel(), (num,))]).unique()
            values = _values(ground, kind, own)
            if kind == "large":
                values = _with_loud_ends(ground, own, values)
        if len(own):
            groups.append(Group(tensor=tensor, kind=kind, at=own, values=ground.cast(values)))
    return groups


def _table(ground: Ground) -> dict[str, Callable[[Ground, Values], Values]]:
    if not ground.value.is_floating_point():
        return INTEGERS
    return {**ELEMENTS, "beyond": _beyond} if ground.domain.form == "whole" else ELEMENTS


def _values(ground: Ground, kind: str, at: Places) -> Values:
    if kind == "other":
        flat = random.choice([*ground.others, *ground.strangers]).reshape(-1)
        size = ground.value.numel()
        at = at if len(flat) == size else torch.randint(len(flat), at.shape)
        return flat[at].double()
    if kind == "tie":  # another element of the row
        length = max(1, ground.value.shape[-1] if ground.value.ndim else 1)
        start = at // length * length
        step = torch.randint(1, max(2, length), at.shape)
        step = torch.where(torch.rand(at.shape) < 0.5, 1, step)  # a neighbour in every second place
        return ground.flat[start + (at - start + step) % length].double()
    return _table(ground)[kind](ground, ground.flat[at].double())


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
    """[places] first and last elements of some lines of each axis; loud ones in whole rows, too."""
    shape, size = ground.value.shape, ground.value.numel()
    found = [torch.zeros(0, dtype=torch.int64)]
    for axis, length in enumerate(shape):
        lines, inner = (size // length if length > 1 else 0), math.prod(shape[axis + 1 :])
        is_few = lines <= BLOCK
        chosen = torch.randperm(lines) if is_few else torch.randint(lines, (NUM_LINES,))
        chosen = chosen[:NUM_LINES]
        first = chosen // inner * (inner * length) + chosen % inner
        found += [first, first + (length - 1) * inner]
    places, fixed = torch.cat(found).unique(), ground.domain.fixed
    if not is_loud:
        return ground.movable(places)
    return places if fixed is None else places[~fixed[places]]


def _with_loud_ends(ground: Ground, at: Places, values: Values) -> Values:
    """Large values of which those at the ends of rows exceed all others, on both sides of 0: an
    extremum that misses an end is another one."""
    length = ground.value.shape[-1] if ground.value.ndim else 1
    if not len(at) or length < 2:
        return values
    loud, column = values.clone(), at % length
    ends = torch.nonzero((column == 0) | (column == length - 1)).flatten()
    turns = (at[ends] // length).unique(return_inverse=True)[1] + (column[ends] > 0)
    sign = 1 - 2 * (turns % 2).to(values.dtype)  # the other one at a row's other end
    if ground.domain.low >= 0 or ground.domain.high <= 0:
        sign = values[ends].sign()
    loud[ends] = 2 * values.abs().max() * sign
    return loud


def _rows_chosen(ground: Ground) -> tuple[Places, int]:
    """(first elements of a quarter of the rows, length of a row)"""
    length = ground.value.shape[-1] if ground.value.ndim else 1
    count = ground.value.numel() // length
    return torch.randperm(count)[: max(1, min(count // 4, MAX_SLAB // length))] * length, length


def _swap(ground: Ground) -> tuple[Places, Values]:
    """Two elements of a row that change places; of all, if all are different."""
    if ground.domain.form == "distinct" and len(ground.flat.unique()) == len(ground.flat):
        one, two = torch.randperm(len(ground.flat))[: max(1, len(ground.flat) // 8) * 2].chunk(2)
        return torch.cat([one, two]), ground.flat[torch.cat([two, one])].double()
    rows, length = _rows_chosen(ground)
    first = torch.randint(length, rows.shape)
    second = (first + torch.randint(1, max(2, length), rows.shape)) % length
    own, others = torch.cat([rows + first, rows + second]), torch.cat([rows + second, rows + first])
    return own, ground.flat[others].double()


def _other_row(ground: Ground) -> tuple[Places, Values]:
    """Rows that become another one, moved or of another size."""
    rows, length = _rows_chosen(ground)
    rows = rows[:, None] + torch.arange(length)
    others = rows[torch.randperm(len(rows))]
    moved = (torch.randint(0, 2, (len(rows), 1)) * torch.randn(len(rows), 1)).double() * ground.rms
    return rows.flatten(), (ground.flat[others].double() + moved).flatten()


def _mass(ground: Ground) -> tuple[Places, Values]:
    """An element of a row becomes 0 and another one their sum."""
    own, values = _swap(ground)
    half = len(own) // 2
    return own, torch.cat([torch.zeros(half), values[:half] + values[half:]])


def _other_value(ground: Ground) -> tuple[Places, Values]:
    """The other one of two values."""
    low, high = ground.domain.low, ground.domain.high
    if low == high:
        low, high = (0.0, high) if high else (0.0, 1.0)
    at = torch.cat([_places(ground, num_kinds=8), _ends(ground)]).unique()
    if ground.turn % 2:  # so few that no sample has one
        at = at[torch.randperm(len(at))[: MIN_PLANTS // 2]]
    return at, torch.where(ground.flat[at].double() == high, low, high)


def _single(ground: Ground) -> tuple[Places, Values]:
    """An integer for which Triton makes the same kernel."""
    given = int(ground.flat[0])
    alike = [n for n in range(2, min(given, 4096)) if (n % 16 == 0) == (given % 16 == 0)]
    chosen = [random.choice([0, *random.sample(alike, min(1, len(alike)))])]
    return torch.zeros(len(chosen), dtype=torch.int64), torch.tensor(chosen).double()


def _between(ground: Ground) -> tuple[Places, Values]:
    """Inner elements of sorted rows at other distances: of integers, unlike ones in another order,
    or any that do not vanish in place of equal ones."""
    value = ground.value
    length = value.shape[-1]
    rows = value.reshape(-1, length)[: max(1, MAX_SLAB // length)].double()
    gaps = rows.diff(dim=-1)
    low, high = float(gaps.min()), float(gaps.max())
    if value.is_floating_point():
        made = gaps * (2 * torch.randn(gaps.shape, dtype=torch.float64)).exp_()
        made = made * (gaps.sum(-1, keepdim=True) / made.sum(-1, keepdim=True))
    elif low < high:
        made = gaps.gather(-1, torch.rand(gaps.shape).argsort(-1))
    else:
        span = int(low) * (length - 1)
        cuts = torch.stack([torch.randperm(span - 1)[: length - 2].sort().values + 1 for _ in rows])
        whole = (
            torch.nn.functional.pad(cuts, (1, 0)),
            torch.nn.functional.pad(cuts, (0, 1), value=span),
        )
        made = (whole[1] - whole[0]).double()
    may_join = value.is_floating_point() or low == 0 or bool(ground.looks.integers)
    if may_join and random.random() < EQUAL:  # two are equal, or one of equal ones is left out
        at = (made > 0).nonzero()
        chosen = at[torch.rand(len(at)) < 1 / 8]
        for row, column in chosen.tolist():
            later = (made[row, column + 1 :] > 0).nonzero()
            if len(later):
                made[row, column + 1 + int(later[0])] += made[row, column]
                made[row, column] = 0
    inner = (rows[:, :1] + made.cumsum(-1))[:, :-1]
    inner = torch.minimum(inner, rows[:, -1:]) if value.is_floating_point() else inner
    at = torch.arange(len(rows))[:, None] * length + torch.arange(1, length - 1)
    return at.flatten(), inner.flatten()


def _congruent(ground: Ground) -> tuple[Places, Values]:
    """D A D of a symmetric matrix, which stays definite."""
    value = ground.value.double()
    scale = torch.ones(value.shape[:-1], dtype=torch.float64).flatten()
    chosen = torch.randperm(len(scale))[: max(1, len(scale) // 16)]
    scale[chosen] = _signs(chosen.shape) * _power_of_2(torch.randint(-2, 3, chosen.shape).double())
    scale = scale.view(*value.shape[:-1], 1)
    made = (value * scale * scale.mT).flatten()
    own = (made != value.flatten()).nonzero()[:, 0]
    return own, made[own]


_STRUCTURED: dict[str, Callable[[Ground], tuple[Places, Values]]] = {
    "swap": _swap,
    "mass": _mass,
    "other row": _other_row,
    "other value": _other_value,
    "single": _single,
    "between": _between,
    "congruent": _congruent,
}
"""Kinds that change elements together, or that depend on the form."""


def plant_state(model: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> None:
    """Plants into parameters and saved floats of a model, in place: a few zeros, ties, other signs
    and sizes; of a few elements all grow. Some that were constant `before` they were moved get that
    back in a part. Vectors of one sign stay so: biases below a maximum."""
    trained = {one.data_ptr() for one in model.parameters()}
    has_defaults, is_head = random.random() < 0.5, random.random() < 0.7
    for name, value in model.state_dict().items():
        size = value.numel()
        if not value.is_floating_point() or not value.is_contiguous():
            continue
        if size < MIN_ROW:
            if value.data_ptr() in trained and random.random() < GROWN:
                value.add_(value.sign() * random.uniform(1, 4))
            continue
        flat, default = value.view(-1), before[name].flatten()
        domain = Domain.of([value], permutes=False)
        if domain.form != "free":
            continue
        if has_defaults and bool((default == default[0]).all()):
            part = torch.arange(size) < random.randint(size // 8, size - 1)
            flat.copy_(torch.where(part if is_head else ~part, default, flat))
        ground = Ground(value=value, domain=domain, looks=Looks(), rms=rms_of(value))
        has_sign = size == max(value.shape) and domain.low * domain.high > 0
        kinds = ["tie"] if has_sign else ["zero", "tie", "small"]
        kinds += ["grown"] if size == max(value.shape) else []  # a bound of a scale or a bias
        kinds += ["sign"] if value.data_ptr() in trained and not has_sign else []
        at = torch.randint(1, size, (max(min(12, size // 2), size // 64),)).unique()
        for number, kind in enumerate(kinds):
            own = at[number :: len(kinds)]
            if kind == "grown":
                power = 3 + 2 * torch.rand(own.shape, dtype=torch.float64)
                sign = torch.where(flat[own] < 0, -1.0, 1.0)
                flat[own] = ground.cast(sign * max(ground.rms, 0.5) * power.exp2())
            else:
                flat[own] = ground.cast(_values(ground, kind, own))
