"""The table of plants: values that replace a secret few elements of an input.

Called by sets.py. A set is the problem's own inputs with some of these, at places that no sample
foresees: one at least in each block of BLOCK elements and in each row, the first and the last of an
axis in some rows. A row of the table makes the values of one kind. What holds of an input in every
draw holds of a planted one, too (`Domain`): rows stay sorted, sums stay one, a triangle stays one.
"""

from __future__ import annotations

import ast
import math
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.numbers.called import rows_of
from forge.evalpool.judge.numbers.errors.undefined import ORDERS, PUTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.numbers.opcount import OpCounter

BLOCK = 512
"""One plant at least in so many elements."""
MAX_SHARE = 16
"""At most one element in so many, of a tensor with several kinds."""
NUM_LINES = 8
"""Lines of each axis of which the first or last element is planted."""
SLAB_SHARE, MAX_SLAB = 4, 1 << 20
"""A whole row or slab is at most such a part of its tensor, and has so many elements."""
MIN_ROW = 8
"""Elements of a row that are not sorted, or all different, by chance."""
NEAR = 1e-6
MAX_CONSTANTS = 6
"""Constants that one group plants."""
MIN_CONSTANT, MAX_CONSTANT = 1e-6, 1e6
"""Magnitudes of constants worth planting: less is an epsilon, more stands for infinity."""
INDEXING = (
    *("index", "gather", "scatter", "embedding", "take", "one_hot", "nll_loss", "bincount"),
    *("search", "bucket", "repeat_interleave", "ctc_loss", "put", "_local_scalar_dense"),
)
"""Parts of names of operations that take indices, or read one into Python."""
PUTTING = ("index_put", "_index_put_impl", "index_copy", "scatter", "put", "masked_scatter")
"""Operations that leave open which of two values at one index is left."""
NOT_FINITE = {
    "nan": (math.nan,),
    "nan_to_num": (math.nan, math.inf, -math.inf),
    "isfinite": (math.nan, math.inf, -math.inf),
    "isinf": (math.inf, -math.inf),
}
"""Values that are no finite numbers, by the operations that look for them."""
IGNORED = re.compile(r"\bignore_index\s*=\s*(-?\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """The values that a reference looks for in its inputs."""

    constants: tuple[float, ...] = ()
    """Numbers that its operations or its Python code compare with, or jump at."""
    special: tuple[float, ...] = ()
    ignored: int | None = None
    """The label that its loss leaves out, where its source names one."""
    has_indices: bool = True
    """True if an integer may be an index, which must stay in its range."""
    is_putting: bool = True
    may_be_undefined: bool = True
    """True if torch may leave its results open (errors/undefined.py)."""
    is_comparing: bool = False
    """True if it compares two tensors: elements are hardly ever equal by chance."""

    @classmethod
    def of(cls, counted: OpCounter | None, source: str, scopes: Sequence[dict[str, Any]]) -> Looks:
        """The values that one call of a reference and its source show.

        Args:
            counted: from `count_work`; None where the call cannot be watched.
            scopes: names that its code may compare with: of its module, of its model.
        """
        named = IGNORED.search(source)
        constants = _compared(source, scopes)
        if counted is None:
            return cls(constants=_worth(constants), ignored=int(named[1]) if named else None)
        constants |= counted.constants
        constants |= {unit * part for unit in counted.units for part in (0.5, 1.0, 1.5, 2.0)}
        special: dict[float, None] = {}
        for part, values in NOT_FINITE.items():
            if any(part in name for name in counted.work):
                special |= dict.fromkeys(values)
        if any(math.isinf(one) for one in counted.constants):
            special |= dict.fromkeys((math.inf, -math.inf))
        if any(math.isnan(one) for one in counted.constants):
            special[math.nan] = None
        return cls(
            constants=_worth(constants),
            special=tuple(special),
            ignored=int(named[1]) if named else None,
            has_indices=any(part in name for name in counted.work for part in INDEXING)
            or ".tolist(" in source,
            is_putting=any(name.rstrip("_") in PUTTING for name in counted.work),
            may_be_undefined=counted.is_truncating or not (PUTS | ORDERS).isdisjoint(counted.work),
            is_comparing=counted.is_comparing,
        )


def _worth(constants: set[float]) -> tuple[float, ...]:
    return tuple(sorted(one for one in constants if MIN_CONSTANT <= abs(one) <= MAX_CONSTANT))


def _compared(source: str, scopes: Sequence[dict[str, Any]]) -> set[float]:
    """Numbers in comparisons of Python code, as they are or by name."""
    found: set[float] = set()
    for compare in ast.walk(ast.parse(source)):
        if not isinstance(compare, ast.Compare):
            continue
        for one in ast.walk(compare):
            values: list[Any]
            if isinstance(one, ast.Constant):
                values = [one.value]
            elif isinstance(one, ast.Name | ast.Attribute):
                name = one.id if isinstance(one, ast.Name) else one.attr
                values = [scope.get(name) for scope in scopes]
            else:
                continue
            numbers = [value for value in values if type(value) in (int, float)]
            found |= {sign * float(value) for value in numbers for sign in (1, -1)}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Properties that an input has in every draw."""

    form: str
    """free, two (values), sorted, distinct, symmetric, sums (rows of probabilities), norms (rows of
    norm 1), whole (floats that are integers), none (nothing can be planted)."""
    low: float
    high: float
    is_constant: bool
    """True if it is the same in every draw."""
    fixed: torch.Tensor | None
    """[elements] True where it is the same in every draw, of one that is not constant."""

    @classmethod
    def of(cls, draws: Sequence[torch.Tensor]) -> Domain:
        """The domain of an input in several draws."""
        first = draws[0]
        is_plain = first.numel() > 0 and not first.is_complex() and first.layout is torch.strided
        if not is_plain or (first.is_floating_point() and first.itemsize == 1):
            return cls(form="none", low=0, high=0, is_constant=False, fixed=None)
        same = [one for one in draws[1:] if one.shape == first.shape]
        is_constant = bool(same) and all(torch.equal(first, one) for one in same)
        fixed = None
        if same and not is_constant and first.is_floating_point():
            found = (first == same[0]).flatten()
            fixed = found if bool(found.any()) else None
        ends = [torch.aminmax(one) for one in draws if one.numel()]
        return cls(
            form=_form(list(draws), is_constant=is_constant),
            low=min(float(one.min) for one in ends),
            high=max(float(one.max) for one in ends),
            is_constant=is_constant,
            fixed=fixed,
        )


def _form(draws: list[torch.Tensor], *, is_constant: bool) -> str:
    first = draws[0]
    if first.dtype is torch.bool:
        return "two"
    if first.numel() == 1:
        return "free" if first.is_floating_point() else "single"
    rows = [rows_of(one.reshape(1) if not one.ndim else one).double() for one in draws]
    every = torch.cat([one.flatten() for one in rows])
    low, high = every.min(), every.max()
    if bool(((every == low) | (every == high)).all()) and low != high:
        is_hot = all(bool((one.sum(-1) == 1).all()) for one in rows) and first.ndim > 1
        return "distinct" if is_hot else "two"
    lengths = {one.shape[-1] for one in rows}
    is_long = min(lengths) >= MIN_ROW or (first.ndim == 1 and min(lengths) > 2)
    is_varied = low != high
    if is_long and is_varied and all(bool((one.diff(dim=-1) >= 0).all()) for one in rows):
        is_dense = all(bool((one.diff(dim=-1) == 1).all()) for one in rows)
        return "distinct" if is_dense and not first.is_floating_point() else "sorted"
    if not first.is_floating_point():
        is_distinct = all(bool((one.sort(-1).values.diff(dim=-1) != 0).all()) for one in rows)
        return "distinct" if is_distinct and is_varied and min(lengths) > 2 else "free"
    if all(
        one.ndim > 1 and one.shape[-1] == one.shape[-2] > 1 and torch.equal(one, one.mT)
        for one in draws
    ):
        return "symmetric"
    if bool(low >= 0) and all(bool(((one.sum(-1) - 1).abs() < 1e-2).all()) for one in rows):
        return "sums"
    if all(bool(((one.square().sum(-1) - 1).abs() < 1e-2).all()) for one in rows):
        return "norms"
    return "whole" if bool((every == every.round()).all()) and not is_constant else "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Plants of one kind in one tensor."""

    tensor: int
    """Among the leaves of the inputs."""
    kind: str
    at: torch.Tensor
    """[plants] flat indices."""
    values: torch.Tensor
    """[plants] in the tensor's type."""

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy with the plants."""
        made = tensor.clone(memory_format=torch.contiguous_format)
        made.view(-1)[self.at] = self.values
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A tensor in which something is planted."""

    value: torch.Tensor
    """Contiguous."""
    domain: Domain
    looks: Looks
    others: list[torch.Tensor]
    """Other inputs of its shape and type."""
    size: int = 0
    """Steps by which plants have grown (or, below 0, shrunk)."""

    @property
    def flat(self) -> torch.Tensor:
        """[elements]"""
        return self.value.view(-1)

    @property
    def rms(self) -> float:
        """Root mean square of finite elements; 1 for zeros."""
        flat = self.flat[: 1 << 16].double().nan_to_num(0.0, 0.0, 0.0)
        return float(flat.square().mean().sqrt()) or 1.0

    def cast(self, values: torch.Tensor) -> torch.Tensor:
        """Float values in the tensor's type, far from where it overflows."""
        most = torch.finfo(self.value.dtype).max / 64
        return values.clamp(-most, most).to(self.value.dtype)


Made = torch.Tensor
Row = "Callable[[Ground, torch.Tensor], torch.Tensor]"
LARGE = ((1.0, 3.0), (3.0, 6.0), (6.0, 12.0), (12.0, 20.0), (20.0, 30.0))
"""Powers of two by which a large plant exceeds the rms, by step; the third is where it begins."""


def _signs(at: torch.Tensor) -> torch.Tensor:
    return (torch.rand(at.shape) < 0.5).double() * 2 - 1


def _sign(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    old = ground.flat[at].double()
    return torch.where(old == 0, -ground.rms / 8 * (1 + torch.rand(at.shape)), -old)


def _large(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    low, high = LARGE[min(max(0, 2 + ground.size), len(LARGE) - 1)]
    if ground.value.itemsize < 4:
        low, high = min(low, 2.0), min(high, 4.0)
    power = low + (high - low) * torch.rand(at.shape, dtype=torch.float64)
    sign = 1.0 if ground.domain.low >= 0 else -1.0 if ground.domain.high <= 0 else _signs(at)
    return power.exp2_() * ground.rms * sign


def _small(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    power = torch.randint(6, 12 if ground.value.itemsize < 4 else 40, at.shape).double()
    old = ground.flat[at].double()
    return torch.where(old == 0, ground.rms, old) * (-power).exp2()


def _zero(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(at.shape, dtype=torch.float64) * _signs(at)  # of either sign


def _tie(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    """The value of another element of the row."""
    length = max(1, ground.value.shape[-1] if ground.value.ndim else 1)
    start = at // length * length
    return ground.flat[start + (at - start + torch.randint(1, max(2, length), at.shape)) % length]


def _other(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    """The value of another input at the same place."""
    return random.choice(ground.others).reshape(-1)[at]


def _constant(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    """Constants that the reference compares with, and values on both sides of them."""
    chosen = random.sample(ground.looks.constants, min(MAX_CONSTANTS, len(ground.looks.constants)))
    if ground.domain.low >= 0 and any(one > 0 for one in chosen):
        chosen = [one for one in chosen if one > 0]
    values = torch.tensor(chosen or [1.0], dtype=torch.float64)
    values = values[(torch.arange(len(at)) + random.randrange(8)) % len(values)]
    step = values.abs() * torch.finfo(ground.value.dtype).eps
    sides = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    near = values + step * sides[torch.randint(3, at.shape)]
    far = values * (1 + sides[torch.randint(1, 3, at.shape)] * (0.05 + torch.rand(at.shape)))
    return torch.where(torch.rand(at.shape) < 0.5, near, far)


def _special(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    values = torch.tensor(ground.looks.special, dtype=torch.float64)
    return values[torch.randint(len(values), at.shape)]


FLOATS: dict[str, Any] = {
    "large": _large,
    "special": _special,
    "constant": _constant,
    "sign": _sign,
    "zero": _zero,
    "tie": _tie,
    "small": _small,
    "other": _other,
}
"""Values by kind, of floats, in the order in which they are planted: what hides others first."""


def _edge(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    """The least and the greatest value of all draws; 0 below them."""
    low, high = int(ground.domain.low), int(ground.domain.high)
    values = torch.tensor(sorted({low, high, 0} if 0 <= low <= 1 else {low, high}))
    return values[torch.randint(len(values), at.shape)]


def _within(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    """Values between 1 and a constant: lengths, states."""
    low, high = int(ground.domain.low), int(ground.domain.high)
    low = min(low, 1) if low == high else low
    return torch.randint(low, high + 1, at.shape)


def _beyond(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    """Values of another sign, or beyond the range, where nothing is an index."""
    old = ground.flat[at].long()
    return torch.where(torch.rand(at.shape) < 0.5, -old - 1, old * 2 + 1)


def _whole_constant(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    """Integers that the reference compares with, and their neighbours."""
    values = [round(one) for one in ground.looks.constants]
    if ground.looks.has_indices:
        low, high = min(0, ground.domain.low), ground.domain.high
        values = [one for one in values if low <= one <= high]
    values = values or [0]
    chosen = torch.tensor(values)[torch.randint(len(values), at.shape)]
    step = torch.randint(-1, 2, at.shape)
    return chosen if ground.looks.has_indices else chosen + step


def _label(ground: Ground, at: torch.Tensor) -> torch.Tensor:
    return torch.full(at.shape, ground.looks.ignored or 0)


INTEGERS: dict[str, Any] = {
    "ignored": _label,
    "beyond": _beyond,
    "edge": _edge,
    "constant": _whole_constant,
    "within": _within,
    "tie": _tie,
}
ROWS = ("zero row", "negative row", "positive row", "equal row")
"""Kinds of whole rows, columns and slabs, of free floats."""


def kinds_for(domain: Domain, value: torch.Tensor, looks: Looks, *, num_others: int) -> list[str]:
    """The kinds that can be planted in a tensor, in the order of planting."""
    if domain.form in ("none", "distinct", "sorted", "symmetric", "two", "sums", "norms", "single"):
        return {"none": [], "single": ["single"], "distinct": ["swap"], "sorted": ["between"],
                "symmetric": ["congruent"], "two": ["one", "none"], "sums": ["swap", "zero mass"],
                "norms": ["swap", "sign"]}[domain.form]  # fmt: skip
    if not value.is_floating_point():
        found = ["edge", "tie", *(["within"] if domain.low == domain.high else [])]
        found += ["ignored"] if looks.ignored is not None else []
        found += ["constant"] if looks.constants else []
        signed = value.dtype.is_signed and not looks.has_indices
        return [kind for kind in INTEGERS if kind in {*found, *(["beyond"] if signed else [])}]
    if domain.form == "whole":
        return ["zero", "tie", "sign"]
    left_out = {
        *([] if looks.special else ["special"]),
        *([] if looks.is_comparing and num_others else ["other"]),
    }
    kinds = [kind for kind in FLOATS if kind not in left_out]
    return kinds if value.numel() == 1 else [*ROWS, *kinds]


def places(value: torch.Tensor, domain: Domain, *, num_kinds: int) -> torch.Tensor:
    """[places] flat indices in random order."""
    size = value.numel()
    if size == 1:
        return torch.zeros(1, dtype=torch.int64)
    starts = torch.arange(0, size, BLOCK)
    lengths = (size - starts).clamp(max=BLOCK)
    found = [starts + (torch.rand(len(starts)) * lengths).long()]
    last = value.shape[-1]
    num_rows = size // last
    rows = torch.randperm(num_rows)[: max(1, min(num_rows, size // MAX_SHARE))]
    found.append(rows * last + torch.randint(last, rows.shape))
    least = min(2 * num_kinds, max(1, size // 4))
    found.append(torch.randint(size, (least,)))
    every = torch.cat(found)
    every = every[torch.randperm(len(every))][: max(least, size // MAX_SHARE)]
    return _movable(every.unique(), domain)


def ends(value: torch.Tensor, domain: Domain) -> torch.Tensor:
    """[places] first and last elements of some lines of each axis."""
    found: list[torch.Tensor] = []
    for axis, length in enumerate(value.shape):
        if length > 1:
            num = min(NUM_LINES, max(1, value.numel() // length // 4))
            index = [torch.randint(n, (num,)) for n in value.shape]
            index[axis] = torch.randint(2, (num,)) * (length - 1)
            flat = torch.zeros(num, dtype=torch.int64)
            for n, one in zip(value.shape, index, strict=True):
                flat = flat * n + one
            found.append(flat)
    every = torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
    return _movable(every.unique(), domain)


def _movable(at: torch.Tensor, domain: Domain) -> torch.Tensor:
    at = at if domain.fixed is None else at[~domain.fixed[at]]
    return at[torch.randperm(len(at))]


def make_groups(ground: Ground, tensor: int, kinds: Sequence[str]) -> list[Group]:
    """Plants of several kinds in one tensor, each at places of its own."""
    value, domain = ground.value, ground.domain
    table = FLOATS if value.is_floating_point() else INTEGERS
    scattered = [kind for kind in kinds if kind in table]
    at = places(value, domain, num_kinds=len(scattered)) if scattered else None
    groups: list[Group] = []
    for kind in kinds:
        if kind in table:
            assert at is not None
            own = at[scattered.index(kind) :: len(scattered)]
            if kind in ("large", "edge", "beyond"):
                own = torch.cat([own, ends(value, domain)]).unique()
            values = table[kind](ground, own)
            if value.is_floating_point() and kind != "special":
                values = ground.cast(values)
        else:
            own, values = _structured(ground, kind)
        if len(own):
            groups.append(Group(tensor=tensor, kind=kind, at=own, values=values.to(value.dtype)))
    return groups


def _structured(ground: Ground, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Places and values of a kind that changes elements together."""
    value, flat, domain = ground.value, ground.flat, ground.domain
    if kind in ROWS:
        own = _movable(torch.cat(_slabs(value) or [torch.arange(0)]).unique(), domain)
        old = flat[own]
        if kind == "zero row":
            return own, torch.zeros_like(old)
        if kind == "equal row":
            return own, flat[random.randrange(len(flat))].expand(len(own)).clone()
        old = torch.where(old == 0, ground.rms / 8, old.double().abs()).to(old.dtype)
        return own, old if kind == "positive row" else -old
    if kind in ("one", "none"):
        return _flipped(ground, to_high=kind == "one")
    if kind == "single":
        own = torch.zeros(1, dtype=torch.int64)
        given = int(flat[0])
        alike = [n for n in range(2, min(given, 4096)) if (n % 16 == 0) == (given % 16 == 0)]
        return (own, torch.tensor([random.choice(alike)])) if alike else (own[:0], own[:0])
    if kind == "swap":
        length = value.shape[-1] if value.ndim else 1
        rows = torch.randperm(value.numel() // length)[: max(1, value.numel() // length // 4)]
        pair = torch.rand(len(rows), length).topk(2, dim=-1).indices if length > 1 else None
        if pair is None or value.numel() > MAX_SLAB * 16:
            return rows[:0], flat[:0]
        own = (rows[:, None] * length + pair).flatten()
        return own, flat[(rows[:, None] * length + pair.flip(1)).flatten()]
    if kind == "zero mass":
        length = value.shape[-1]
        rows = torch.randperm(value.numel() // length)[: max(1, value.numel() // length // 4)]
        pair = torch.rand(len(rows), length).topk(2, dim=-1).indices
        own = rows[:, None] * length + pair
        mass = flat[own].sum(-1, keepdim=True)
        return own.flatten(), torch.cat([torch.zeros_like(mass), mass], -1).flatten()
    if kind == "between":
        return _between(ground)
    assert kind == "congruent"
    length = value.shape[-1]
    scale = torch.ones(value.numel() // length, 1, dtype=torch.float64)
    chosen = torch.randperm(len(scale))[: max(1, len(scale) // 16)]
    scale[chosen, 0] = _signs(chosen) * torch.randint(-2, 3, chosen.shape).double().exp2()
    scale = scale.view(*value.shape[:-1], 1)
    made = (value.double() * scale * scale.mT).flatten()
    own = (made != flat.double()).nonzero()[:, 0]
    return own, ground.cast(made[own])


def _slabs(value: torch.Tensor) -> list[torch.Tensor]:
    """Flat indices of a slab of each axis that has enough, or of a line within it; of all, where
    there is none."""
    shape, size = value.shape, value.numel()
    found: list[torch.Tensor] = []
    for axis, length in enumerate(shape):
        inner = math.prod(shape[axis + 1 :])
        outer = size // max(1, inner * length)
        slab = size // length
        if length >= SLAB_SHARE and slab <= MAX_SLAB and slab > 1:
            start = torch.arange(outer)[:, None] * inner * length
            index = random.randrange(length)
            found.append((start + index * inner + torch.arange(inner)).flatten())
        if len(shape) > 2 and length > 1 and size // length >= SLAB_SHARE:  # a line
            row, column = random.randrange(outer), random.randrange(inner)
            found.append(row * inner * length + torch.arange(length) * inner + column)
    return found or ([torch.arange(size)] if size <= MAX_SLAB else [])


def _flipped(ground: Ground, *, to_high: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Elements of two values that get the other one; no row loses all that are high."""
    value, flat, domain = ground.value, ground.flat, ground.domain
    low, high = domain.low, domain.high
    if low == high:
        low, high = (0.0, high) if high else (0.0, 1.0)
    at = torch.cat([places(value, domain, num_kinds=2), ends(value, domain)]).unique()
    at = at[(flat[at] != (high if to_high else low))]
    if not to_high and value.ndim > 1 and len(at):
        length = value.shape[-1]
        row = at // length
        had = (value.view(-1, length)[row] == high).sum(-1)
        lost = torch.zeros(value.numel() // length, dtype=torch.int64)
        lost.index_add_(0, row, torch.ones_like(row))
        at = at[had > lost[row]]
    return at, torch.full(at.shape, high if to_high else low).to(value.dtype)


def _between(ground: Ground) -> tuple[torch.Tensor, torch.Tensor]:
    """Inner elements of sorted rows, moved to a place between their neighbours; of integers such
    that no gap exceeds the largest or vanishes where none did."""
    value = ground.value
    length = value.shape[-1]
    rows = value.reshape(-1, length)
    inner = torch.arange(1 + random.randrange(2), length - 1, 2)
    if not len(inner):
        return torch.zeros(0, dtype=torch.int64), value.view(-1)[:0]
    before, after = rows[:, inner - 1].double(), rows[:, inner + 1].double()
    made = before + (after - before) * torch.rand(before.shape, dtype=torch.float64)
    if not value.is_floating_point():
        gaps = rows.diff(dim=-1)
        least, most = min(1, int(gaps.min())), int(gaps.max())
        made = made.floor().maximum(before + least).minimum(after - least)
        made = made.minimum(before + most).maximum(after - most)
    keep = torch.rand(made.shape) < 0.5
    at = (torch.arange(len(rows))[:, None] * length + inner)[keep]
    return at, made[keep].to(value.dtype)
