"""Edge values planted into input sets: where a reference may behave otherwise than in between.

Called by `input_sets.py` for the sets behind the first, as far as the reference bears it:

    zeros      scattered, and a whole slice of each axis that has enough: masks, norms of 0
    raised     of one input, a slice and an element of another slice far above all others: a softmax
               without its maximum overflows; where positions count, one element alone
    constants  values around those that the reference compares with, and these themselves: clamps,
               thresholds; NaN and infinities where the reference looks for them; equal ones where
               it compares tensors; the jumps of what rounds an input (ties.py)
    signs      a slice of each axis of negative values where the reference looks for a maximum, of
               positive ones for a minimum: one that begins with 0 is wrong there
    lowered    of one input, where the reference looks for a maximum, a slice far below all others:
               one that begins with 0 or -10 is wrong there, also within a softmax or beside masked
               scores; where equal values would leave its answer open, a slice next to zero, of
               which a product leaves the bias (parameters.py): zeros do so elsewhere
    integers   negative ones where nothing may be an index or the number of something; lengths of 0;
               the label left out; an index twice where the reference adds

No kind tells that another is there: each has a set where it is the only one, whose distribution
varies from draw to draw, and nothing else is planted into what is raised.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.numbers.errors.undefined import ORDERS, PUTS
from forge.evalpool.judge.numbers.inputs.ties import (
    are_different,
    jumps,
    plant_ties_,
    repeat_places_,
)
from forge.evalpool.judge.numbers.opcount import READ

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from forge.evalpool.judge.numbers.opcount import OpCounter

RAISED_BY = 100.0
"""At least so much: exp of it overflows in fp32; two orders above values near 1."""
ALONE = (92.0, 120.0)
"""An element that is raised alone, where floats become integers: exp of it overflows in fp32, and
it fits into 8 bits."""
RAISED_SPREAD = 8.0
"""Least standard deviation of a slice that is raised or lowered. With one below 1, a variance as
most published norms compute it, the mean of squares less the square of the mean, has no digits
left."""
MIN_SLICES = 4
"""Slices of an axis of which one may be zeros, two raised and one lowered."""
ZERO_SHARE, CONSTANT_SHARE, LABEL_SHARE = 16, 64, 8
"""One element in so many is zero, near a constant, or the label that a loss leaves out."""
MAX_PLANTED = 4096
NEXT_TO_ZERO, NEXT_TO_ZERO_HALF = 2.0**-24, 2.0**-10
"""Factor of a slice that is next to zero, also in half precision: a power of 2 makes no equal
values."""
EXACT_SHARE = 4
"""One value in so many of those around a constant is the constant, of either sign."""
MIN_CONSTANT, MAX_CONSTANT = 1e-3, 1e4
"""Magnitudes of constants that inputs are drawn around. Smaller ones are an epsilon, which zeros
reach; larger ones stand for infinity."""
INFINITIES = (math.inf, -math.inf)
NOT_FINITE = {
    "nan": (math.nan,),
    "nan_to_num": INFINITIES,
    **dict.fromkeys(("isinf", "posinf", "neginf"), INFINITIES),
    "isfinite": (math.nan, *INFINITIES),
}
"""Values that are no finite numbers, by the part of an operation's name that says that it looks for
them."""
INDEXING = (
    *("index", "gather", "scatter", "embedding", "take", "one_hot", "nll_loss", "bincount"),
    *("search", "bucket", "repeat_interleave", "ctc_loss", "put"),
)
"""Parts of names of operations that take indices: a negative one ends a process on a GPU."""
ADDING = ("index_add", "scatter_add", "scatter_reduce", "index_reduce", "bincount")
"""Operations for which an index may occur twice..."""
PUTTING = ("index_put", "_index_put_impl", "index_copy", "scatter", "put", "masked_scatter")
"""...and those that leave open, then, which of two values is left."""
SIGNED = {"copysign", "signbit", "atan2"}
"""Operations that tell a negative zero from a positive one, and give finite results for both."""
SELECTING = {
    *("max", "min", "argmax", "argmin", "topk", "kthvalue", "sort", "argsort", "median"),
    *("nanmedian", "mode", "cummax", "cummin"),
}
"""Operations that return positions, which equal values leave open."""
MAXIMA = ("max", "sort", "topk", "median", "kthvalue", "sumexp")
"""Parts of names of operations that look for a maximum, or for any place in an order; softmax is
one of them."""
MATCHING = ("eq", "ne", "isin")
"""Operations that look for equal values: integers are the numbers of experts, classes, segments,
and a kernel may use them as indices."""
IGNORED = re.compile(r"\bignore_index\s*=\s*(-?\d+)")


class Kind(StrEnum):
    """Kinds of edge values."""

    RAISED = "raised"
    ZEROS = "zeros"
    CONSTANTS = "constants"
    SIGNS = "signs"
    LOWERED = "lowered"
    INTEGERS = "integers"


Kinds = frozenset[Kind]
SHIFTED: Kinds = frozenset({Kind.RAISED, Kind.LOWERED})
"""Kinds that one input of a set has: a product of two would be beyond all other results."""


def planned(kinds: Collection[Kind], num_sets: int) -> list[Kinds]:
    """The kinds of edge values in each of `num_sets` sets of a draw: each kind in one at least,
    alone there as far as there are enough sets; integers are independent. A set that is left has
    any of them."""
    alone = [kind for kind in Kind if kind in kinds and kind is not Kind.INTEGERS]
    made: list[set[Kind]] = [set() for _ in range(num_sets)]
    homes = random.sample(made, num_sets)
    for one in homes[len(alone) :]:
        one |= {kind for kind in alone if random.random() < 0.5}
    for kind, home in zip(alone, [*homes, *homes[-1:] * len(alone)], strict=False):
        home.add(kind)
    if Kind.INTEGERS in kinds and made:
        chosen = random.choice(made)
        for one in made:
            if one is chosen or random.random() < 0.5:
                one.add(Kind.INTEGERS)
    return [frozenset(one) for one in made]


def fewer(kinds: Kinds) -> list[Kinds]:
    """Selections of `kinds`, from all to none, in the order in which they are tried."""
    orders = (Kind.LOWERED, Kind.SIGNS)
    others = (Kind.RAISED, Kind.ZEROS, *orders)
    dropped = [
        *((), orders[:1], orders, (Kind.RAISED,), (Kind.ZEROS,), (Kind.RAISED, Kind.ZEROS)),
        *(others, (*others, Kind.INTEGERS), (*others, Kind.CONSTANTS), tuple(Kind)),
    ]
    return list(dict.fromkeys(kinds.difference(one) for one in dropped))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """The edges of one reference."""

    constants: tuple[float, ...] = ()
    """Numbers that its operations compare with."""
    special: tuple[float, ...] = ()
    """NaN and infinities, where the reference looks for them."""
    is_comparing: bool = False
    """True if it compares tensors: elements of two inputs are hardly ever equal by chance."""
    units: tuple[float, ...] = ()
    """Units to multiples of which it rounds an input: jumps are hardly ever met by chance."""
    sign: int = 0
    """-1 if it looks for a maximum, 1 for a minimum alone, else 0: an extremum that begins with 0
    is wrong where all values have this sign."""
    has_signed_zeros: bool = False
    """True if it tells a negative zero from a positive one."""
    has_indices: bool = True
    """False if no integer of its inputs can be an index: none is given to an operation that takes
    some, or read by Python."""
    is_matching: bool = False
    """True if it looks for equal values: integers may be numbers of something."""
    is_decided: bool = True
    """False if equal values, or none that is a number, would leave its answer open: zeros have
    such, and slices that lose their last bits."""
    ignored: int | None = None
    """The label that its loss leaves out, where its source names one."""
    is_accumulating: bool = False
    """True if it adds at indices: those that are drawn are often all different."""
    has_permutations: bool = False
    """True if the source draws permutations, of which indices may be parts."""
    is_rounding: bool = False
    """True if it casts floats to integers: a few may be off by one (errors/rounded.py)."""
    may_be_undefined: bool = False
    """True if torch leaves its results open on some inputs (errors/undefined.py)."""

    @classmethod
    def of(cls, counted: OpCounter | None, source: str) -> Edges:
        """The edges that one call of a reference and its source show.

        Args:
            counted: from `count_work`; None where the call cannot be watched.
        """
        named = IGNORED.search(source)
        ignored = int(named.group(1)) if named else None
        if counted is None:
            return cls(ignored=ignored)
        sizes = sorted(one for one in counted.constants if one == one)
        special = _special(counted)
        return cls(
            constants=tuple(one for one in sizes if MIN_CONSTANT <= abs(one) <= MAX_CONSTANT),
            special=special,
            is_comparing=counted.is_comparing,
            units=tuple(
                sorted(one for one in counted.units if MIN_CONSTANT <= one <= MAX_CONSTANT)
            ),
            sign=_sign(counted.work),
            has_signed_zeros=any(name.rstrip("_") in SIGNED for name in counted.work),
            has_indices=any(part in name for name in counted.work for part in INDEXING)
            or READ in counted.work
            or ".tolist(" in source,
            is_matching=any(name.rstrip("_") in MATCHING for name in counted.work),
            is_decided=not counted.is_truncating
            and not any(name.rstrip("_") in SELECTING for name in counted.work),
            ignored=ignored,
            is_accumulating=_accumulates({name.rstrip("_") for name in counted.work}),
            has_permutations="randperm" in source,
            is_rounding=counted.is_truncating,
            may_be_undefined=_may_be_undefined(counted, special),
        )

    def kinds(self, *, has_integers: bool) -> Kinds:
        """The kinds that could change anything."""
        found = {Kind.RAISED, Kind.ZEROS} if self.is_decided else {Kind.RAISED}
        if self.constants or self.special or self.is_comparing or self.units:
            found.add(Kind.CONSTANTS)
        if self.sign:
            found.add(Kind.SIGNS)
        if self.sign < 0:
            found.add(Kind.LOWERED)
        if has_integers:
            found.add(Kind.INTEGERS)
        return frozenset(found)

    def plant_(self, value: torch.Tensor, *, kinds: Kinds, signs: bool) -> torch.Tensor:
        """A contiguous floating tensor with edge values, written in place.

        Args:
            kinds: which of them.
            signs: values may be negative.
        """
        if value.numel() < 2:
            return value
        flat = value.view(-1)
        slices = _slices(value)
        raised = slices[1:3] if Kind.RAISED in kinds else []
        before = [one.clone() for one in raised]
        if Kind.CONSTANTS in kinds:
            self._plant_constants(flat, signs=signs)
            if self.is_comparing and self.is_decided:
                plant_ties_(value)
        if Kind.ZEROS in kinds and self.is_decided:
            places = _places(flat, ZERO_SHARE)
            flat[places] = 0
            for one in [*slices[:1], *_crossing(value)]:
                one.zero_()
            if self.has_signed_zeros and signs:
                flat[places[: len(places) // 2]] = -0.0
        if Kind.SIGNS in kinds and signs and self.sign:
            _plant_signs(value, self.sign)
        if Kind.LOWERED in kinds and signs and self.sign < 0:
            _lower(_short(value) or slices[3:], is_decided=self.is_decided)
        for one, earlier in zip(raised, before, strict=True):
            one.copy_(earlier)
        if self.is_decided:
            _raise(raised)
        elif raised:
            flat[random.randrange(len(flat))] = random.uniform(*ALONE)
        return value

    def _plant_constants(self, flat: torch.Tensor, *, signs: bool) -> None:
        limit = torch.finfo(flat.dtype).max / 4
        for constant in self.constants:
            places = _places(flat, CONSTANT_SHARE)
            around = torch.rand(len(places), device=flat.device) * 4.5 - 2.0  # from -2 to 2.5
            around[::EXACT_SHARE] = around[::EXACT_SHARE].sign()
            around.mul_(constant).clamp_(-limit, limit)
            flat[places] = (around if signs else around.abs_()).to(flat.dtype)
        for unit in self.units:
            places = _places(flat, CONSTANT_SHARE)
            at = torch.tensor(jumps(unit, signs=signs), device=flat.device, dtype=flat.dtype)
            flat[places] = at[torch.randint(len(at), (len(places),), device=flat.device)]
        for special in self.special:
            flat[_places(flat, len(flat))] = special

    def plant_equal_(self, values: Sequence[torch.Tensor]) -> None:
        """Copies some elements of each contiguous tensor into the next one of its form, in place,
        where the reference compares tensors."""
        if not self.is_comparing:
            return
        for one, other in itertools.pairwise(values):
            if one.shape == other.shape and one.dtype is other.dtype:
                places = _places(one.view(-1), CONSTANT_SHARE)
                other.view(-1)[places] = one.view(-1)[places]

    def labels(self, value: torch.Tensor) -> torch.Tensor:
        """Integers with some at an edge: of other sign, the label left out, an index that occurs
        twice."""
        made = value.clone()
        flat = made.view(-1)
        if self.ignored is not None:
            flat[_places(flat, LABEL_SHARE)] = self.ignored
        elif self._may_be_negative(value):
            flat[torch.rand(len(flat), device=value.device) < 0.5] *= -1
        elif self.is_accumulating and not are_different(made, is_likely=self.has_permutations):
            repeat_places_(made)
        return made

    def _may_be_negative(self, value: torch.Tensor) -> bool:
        is_number = self.has_indices or (self.is_matching and bool((value >= 0).all()))
        return not is_number and value.ndim > 1 and value.dtype.is_signed


def _accumulates(names: Collection[str]) -> bool:
    return any(name in ADDING for name in names) and not any(name in PUTTING for name in names)


def _may_be_undefined(counted: OpCounter, special: Collection[float]) -> bool:
    looks_for_nan = any(one != one for one in special)
    watched = PUTS if looks_for_nan else PUTS | ORDERS
    return counted.is_truncating or any(name in watched for name in counted.work)


def _special(counted: OpCounter) -> tuple[float, ...]:
    """NaN and infinities, as far as operations look for them or compare with them."""
    parts = [part for part in NOT_FINITE if any(part in name for name in counted.work)]
    found = dict.fromkeys(one for part in parts for one in NOT_FINITE[part])
    if any(math.isinf(one) for one in counted.constants):
        found |= dict.fromkeys(INFINITIES)
    if any(math.isnan(one) for one in counted.constants):
        found[math.nan] = None
    return tuple(found)


def _slices(value: torch.Tensor) -> list[torch.Tensor]:
    """Four slices of the first axis that has enough, elements of a single row; none if there is no
    such axis."""
    axis = next((a for a, length in enumerate(value.shape) if length >= MIN_SLICES), None)
    if axis is None:
        return []
    chosen = torch.randperm(value.shape[axis], device=value.device)[:4].tolist()
    return [value.narrow(axis, index, 1) for index in chosen]


def _short(value: torch.Tensor) -> list[torch.Tensor]:
    """A slice of the first axis that has several, if there are too few for `_slices`: one of a
    later axis may cross all rows."""
    axis = next(a for a, length in enumerate(value.shape) if length > 1)
    length = value.shape[axis]
    return [value.narrow(axis, random.randrange(length), 1)] if length < MIN_SLICES else []


def _crossing(value: torch.Tensor) -> list[torch.Tensor]:
    """A slice of each axis behind the first that has enough: a channel, a column."""
    axes = [a for a, length in enumerate(value.shape) if MIN_SLICES <= length < value.numel()]
    return [value.narrow(a, random.randrange(value.shape[a]), 1) for a in axes[1:]]


def _sign(names: Collection[str]) -> int:
    """Negative for operations that look for a maximum, positive for a minimum alone."""
    if any(part in name for name in names for part in MAXIMA):
        return -1
    return int(any("min" in name for name in names))


def _plant_signs(value: torch.Tensor, sign: int) -> None:
    """Gives all values of a slice of each axis one sign; zeros too."""
    for axis, length in enumerate(value.shape):
        if length > 1:
            part = value.narrow(axis, random.randrange(length), 1).abs_()
            part.add_(part.mean() / 8).mul_(sign)


def _lower(slices: Sequence[torch.Tensor], *, is_decided: bool) -> None:
    """Moves these slices far below 0, or next to 0 where equal values would leave an answer
    open."""
    for one in slices:
        if is_decided:
            _widen(one)
            one.sub_(one.max() + RAISED_BY * random.uniform(1.0, 1.5))
        else:
            one.mul_(NEXT_TO_ZERO if one.itemsize > 2 else NEXT_TO_ZERO_HALF)


def _raise(slices: Sequence[torch.Tensor]) -> None:
    """All of the first slice, and one element of the second, which others do not tell."""
    if slices:
        whole, single = slices
        place = tuple(random.randrange(length) for length in single.shape)
        _widen(whole)
        whole.add_(RAISED_BY * random.uniform(1.0, 1.5))
        single[place] += RAISED_BY * random.uniform(1.0, 1.5)


def _widen(part: torch.Tensor) -> None:
    """Scales a slice up to RAISED_SPREAD; equal values stay equal."""
    spread = float(part.float().std()) if part.numel() > 1 else 0.0
    if 0 < spread < RAISED_SPREAD:
        part.mul_(RAISED_SPREAD / spread)


def _places(flat: torch.Tensor, share: int) -> torch.Tensor:
    """[num] random places, one in `share` and one at least."""
    num = min(MAX_PLANTED, max(1, len(flat) // share))
    return torch.randint(len(flat), (num,), device=flat.device)
