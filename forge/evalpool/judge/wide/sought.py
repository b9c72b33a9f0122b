"""Finds the values that a reference looks for in its inputs, as numbers that it compares with.

Called by sets.py for plants.py, which plants them.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from forge.evalpool.judge.numbers.called import rows_of, widened
from forge.evalpool.judge.numbers.opcount import OpCounter
from forge.evalpool.judge.wide.reference import ORDERS, PUTS

MIN_CONSTANT, MAX_CONSTANT = 1e-37, 1e12
"""Magnitudes of constants worth planting; larger ones stand for infinity."""
MAX_FACTOR = 1e4
"""Factors and exponents of constants that are computed."""
DOES = {
    what: re.compile(names)
    for what, names in {
        "indexes": "index|gather|scatter|embedding|take|one_hot|nll_loss|bincount|bucket|put"
        "|repeat_interleave|ctc_loss|_local_scalar_dense|tolist",
        "wraps": r"\A(index|index_put_?|take|put_?)\Z",  # a negative index may be no error
        "sizes": "one_hot|bincount|repeat_interleave|ctc_loss|_local_scalar_dense|histc|tolist",
        "accumulates": r"\A(index_add_?|scatter_add_?|bincount)\Z",  # where an index says
        "adds": r"(sum|mm|mean)\Z",
        "decides": r"\A(eq|ne|lt|le|gt|ge|isin|isclose|bucketize|searchsorted)\Z",
        "joins": "all|any|sum|mean|min|max|prod|cum|sort|norm|mm|count",  # elements of a row
        "walks": r"\Awalk\Z",  # one operation in many steps
        "reads": "_local_scalar_dense",
        "gates": r"\Agate\Z",  # one decision for all of a tensor
        "orders": "sort|topk|kthvalue|median|quantile|unique",
        "bits": "bitwise|shift",
        "extrema": r"\A(?!clamp|maximum|minimum)(.*max|.*min|sort|topk|.*sumexp|masked_fill)",
    }.items()
}
"""Names of operations by what a reference does with them: an integer of "sizes" may be one of
memory or a number of steps of Python's; beside "extrema" a kernel may have -1e6 for infinity."""
MIN_STEPS = 24
"""Calls of one operation by a reference that walks along its inputs."""
IGNORED = re.compile(r"\bignore_index\s*=\s*(-?\d+)")
PERMUTES = re.compile(r"randperm|argsort|topk|multinomial|sample\(")
"""In a source whose indices may all be different by design, though it could be chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    constants: tuple[float, ...] = ()
    """Numbers that its operations or its Python code compare with, or jump at."""
    integers: tuple[int, ...] = ()
    """The same for integers, with neighbours where their order counts."""
    compared: frozenset[float] = frozenset()
    """Numbers that its operations ask something to be equal to, above or below, and `ignored`."""
    special: tuple[float, ...] = ()
    """NaN and infinities."""
    ignored: tuple[int, ...] = ()
    """Labels that its loss leaves out, where its source names one."""
    does: frozenset[str] = frozenset(DOES)
    """Keys of DOES."""
    may_be_undefined: bool = True
    """True if torch may leave its results open (wide/reference.py)."""
    is_comparing: bool = True
    """True if it compares two tensors: elements are hardly ever equal by chance."""
    is_aimed: bool = False
    """True if a decision of a candidate's is sought, which may be about anything."""
    permutes: bool = True
    """True if it may draw indices that are all different by design."""
    host: tuple[float, ...] = ()
    """Numbers that its Python code compares with, and defaults."""
    tested: frozenset[str] = frozenset()
    """Names in comparisons and conditions of its Python code."""
    words: tuple[str, ...] = ()
    """Texts that its Python code compares with, and keys of its dicts."""
    options: tuple[tuple[str, Any], ...] = ()
    """Names that it looks up in a dict, with their defaults: `...` where it has none."""

    def aimed(self, constants: Sequence[float]) -> Looks:
        """The same where a candidate compares something, with these constants among others."""
        far = [one for one in constants if not abs(one) <= MAX_CONSTANT]
        if self.does.isdisjoint(("decides", "orders")):  # NaN is nowhere less than another number
            far += [math.nan, math.inf, -math.inf]
        between = [(a + b) / 2 for a, b in itertools.pairwise(sorted({*constants}.difference(far)))]
        near = {one + step for one in constants if type(one) is int for step in (-1, 0, 1)}
        return replace(
            self,
            constants=tuple(sorted({*self.constants, *_worth(between), *_worth(constants)})),
            integers=tuple(sorted({*self.integers, *(one for one in near if abs(one) < 1 << 31)})),
            special=(*self.special, *{math.copysign(math.inf, o) if o == o else o for o in far}),
            does=self.does | {"decides", "joins"},
            is_comparing=True,
            is_aimed=True,
        )

    @property
    def tells_rows(self) -> bool:
        """True if it may tell rows apart by what holds of all their elements."""
        return "decides" in self.does and ("joins" in self.does or self.is_comparing)

    @classmethod
    def of(cls, counted: OpCounter | None, source: str, scopes: Sequence[dict[str, Any]]) -> Looks:
        """The values that one call of a reference and its source show.

        Args:
            counted: from `count_work`; None where the call cannot be watched.
            scopes: names that its code may compare with: of its module, of its model.
        """
        ignored = tuple(int(one) for one in IGNORED.findall(source))
        nodes = list(ast.walk(ast.parse(source)))
        host = _compared(nodes, scopes)
        # Anywhere in Python code: a reference may behave otherwise around a float.
        values = (one.value for one in nodes if isinstance(one, ast.Constant))
        floats = host | {one for one in values if type(one) is float}
        floats = {sign * one for one in floats for sign in (1.0, -1.0)}
        near = {round(one) + step for one in host for step in (-1, 0, 1)}
        near = {one for one in near if one >= 0 or min(host) < 0}  # a 0 alone may bound counts
        known: dict[str, Any] = {
            "ignored": ignored,
            "permutes": PERMUTES.search(source) is not None,
            "host": tuple(sorted(host)),
            "tested": _tested(nodes),
            "words": _words_in(nodes),
            "options": _options_in(nodes),
        }
        if counted is None:
            return cls(constants=_worth(floats), **known)
        constants = counted.constants | floats
        constants |= {unit * part for unit in counted.units for part in (0.5, 1.0, 1.5, 2.0)}
        constants |= {sign * abs(one) ** 0.5 for one in counted.compared for sign in (1.0, -1.0)}
        return cls(
            constants=_worth(constants),
            integers=tuple(sorted(one for one in counted.integers | near if abs(one) < 1 << 63)),
            compared=frozenset({*counted.compared, *ignored}),
            special=tuple(counted.specials),
            does=done_by(counted, source),
            may_be_undefined=counted.is_truncating or not (PUTS | ORDERS).isdisjoint(counted.names),
            is_comparing=counted.is_comparing,
            **known,
        )


def done_by(counted: OpCounter, source: str) -> frozenset[str]:
    """The keys of DOES whose operations a call has."""
    names = [*counted.names, *(["tolist"] if ".tolist(" in source else [])]
    names += ["gate"] if counted.is_gating else []
    names += ["walk"] if max(counted.names.values(), default=0) >= MIN_STEPS else []
    return frozenset(what for what, one in DOES.items() if any(map(one.search, names)))


def _worth(constants: Collection[float]) -> tuple[float, ...]:
    return tuple(sorted(one for one in constants if MIN_CONSTANT <= abs(one) <= MAX_CONSTANT))


def _compared(nodes: Sequence[ast.AST], scopes: Sequence[dict[str, Any]]) -> set[float]:
    """Numbers in comparisons and defaults of Python code, as they are, by name or computed."""
    found: set[float] = set()
    for one in nodes:
        if isinstance(one, ast.Compare):
            parts: list[ast.AST] = [one.left, *one.comparators]
        elif isinstance(one, ast.arguments):
            parts = [*one.defaults, *(each for each in one.kw_defaults if each is not None)]
        else:
            continue
        while parts:
            part = parts.pop()
            found |= set(_numbers_of(part, scopes))
            if not isinstance(part, ast.Subscript | ast.UnaryOp):  # an index is compared with none
                parts += ast.iter_child_nodes(part)
    return {one for one in found if abs(one) <= MAX_CONSTANT}


def _numbers_of(node: ast.AST, scopes: Sequence[dict[str, Any]]) -> list[float]:
    values: list[Any] = []
    if isinstance(node, ast.Constant):
        values = [node.value]
    elif isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        values = [scope.get(name) for scope in scopes]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        values = [-value for value in _numbers_of(node.operand, scopes)]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.Mult | ast.Div):
        left, right = (_numbers_of(one, scopes) for one in (node.left, node.right))
        is_small = left and right and max(abs(left[0]), abs(right[0])) <= MAX_FACTOR
        with suppress(ArithmeticError):
            exact = {ast.Pow: pow, ast.Mult: operator.mul, ast.Div: operator.truediv}
            values = [exact[type(node.op)](left[0], right[0])] if is_small else []
    return [float(value) for value in values if type(value) in (int, float)]


def _tested(nodes: Sequence[ast.AST]) -> frozenset[str]:
    """Names in comparisons and conditions of Python code."""
    parts = [
        one.test if isinstance(one, ast.If | ast.IfExp | ast.While) else one
        for one in nodes
        if isinstance(one, ast.Compare | ast.If | ast.IfExp | ast.While | ast.BoolOp)
        or (isinstance(one, ast.Call) and getattr(one.func, "id", "") in ("min", "max"))
    ]
    names = (each for part in parts for each in ast.walk(part))
    return frozenset(each.id for each in names if isinstance(each, ast.Name))


def _words_in(nodes: Sequence[ast.AST]) -> tuple[str, ...]:
    """Texts in comparisons of Python code, and keys of its dicts."""
    parts = [part for one in nodes if isinstance(one, ast.Compare) for part in ast.walk(one)]
    parts += [key for one in nodes if isinstance(one, ast.Dict) for key in one.keys if key]
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    return tuple(dict.fromkeys(one for one in values if type(one) is str))


def _options_in(nodes: Sequence[ast.AST]) -> tuple[tuple[str, Any], ...]:
    """Name and default of each `options.get("name", default)` in Python code, and of `"name" in
    options`, which has none."""
    found = dict[str, Any]()
    for one in nodes:
        if isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.In | ast.NotIn):
            if isinstance(one.left, ast.Constant) and type(one.left.value) is str:
                found.setdefault(one.left.value, ...)
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.args:
            values = [each.value if isinstance(each, ast.Constant) else ... for each in one.args]
            if one.func.attr in ("get", "pop") and type(values[0]) is str and ... not in values:
                found[values[0]] = values[1] if len(values) > 1 else None
    return tuple(found.items())


# --- what holds of an input in every draw, and so of a planted one: sorted rows, a triangle


MIN_ROW = 8
"""Elements of a row that are not sorted, or all different, by chance."""
MIN_ORDERED = 16
"""Rows of a few columns of which one is not below another by chance: corners of boxes."""
MIN_FILLED = 6
"""Rows of which the first or last column of two values has not the larger one alone by chance."""
MAX_CHANCE = 1e-6
"""Chance by which indices are all different in all draws, or another column has one value alone,
below which it is by design."""


def opened(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor: both parts of complex ones, float32 for floats of one byte."""
    return torch.view_as_real(tensor) if tensor.is_complex() else widened(tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Properties that an input has in every draw."""

    form: str = "none"
    """free, two (values), ordered (columns), sorted, distinct, hot (one of a row), symmetric, sums
    (of rows are 1), norms (of rows are 1), whole (floats that are integers), none (nothing can be
    planted)."""
    low: float = 0.0
    high: float = 0.0
    fixed: torch.Tensor | None = None
    """[elements] True where it is the same in every draw, of one that is not so as a whole."""
    is_filled: bool = False
    """True for two values of which each row has the larger one by design, as a causal mask."""

    @classmethod
    def of(cls, draws: Sequence[torch.Tensor], *, permutes: bool) -> Domain:
        """The domain of an input in several draws; `permutes` as in `Looks`."""
        if draws[0].layout is not torch.strided or not all(one.numel() for one in draws):
            return cls()
        draws = [opened(one) for one in draws]
        first, floats = draws[0], draws[0].is_floating_point()
        same = [one for one in draws[1:] if one.shape == first.shape]
        is_constant = bool(same) and all(torch.equal(first, one) for one in same)
        form = _form(list(draws), is_constant=is_constant, permutes=permutes)
        may_be_fixed = floats and form not in ("two", "hot") and not is_constant
        fixed = (first == same[0]).flatten() if same and may_be_fixed else None
        ends = [torch.stack(torch.aminmax(one)).tolist() for one in draws]
        return cls(
            form=form,
            low=float(min(one[0] for one in ends)),
            high=float(max(one[1] for one in ends)),
            is_filled=form == "two" and _is_filled(draws, is_constant=is_constant),
            fixed=fixed if fixed is not None and bool(fixed.any()) else None,
        )

    def is_alike(self, other: Domain) -> bool:
        """True for the same form and, of two values, the same ones."""
        is_two = self.form == "two"
        ends = (self.low, self.high), (other.low, other.high)
        return self.form == other.form and (not is_two or ends[0] == ends[1])

    def kept(self, value: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """A tensor with plants in which the form holds again: other elements give way.

        Args:
            at: [plants] flat indices.
        """
        if self.form == "sorted":
            return value.sort(-1).values
        if self.form == "whole":
            return value.round()
        if self.form not in ("symmetric", "sums", "norms") and not self.is_filled:
            return value
        own = value.new_zeros(value.shape, dtype=torch.bool)
        own.view(-1)[at] = True
        if self.is_filled:  # a plant gives way where a row would have none
            is_empty = ~(value == self.high).any(-1, keepdim=True)
            return torch.where(own & is_empty, torch.full_like(value, self.high), value)
        if self.form == "symmetric":
            return torch.where(own & ~own.mT.tril(-1), value, value.mT)
        power = 2 if self.form == "norms" else 1
        tiny = torch.finfo(torch.float64).tiny  # others may all be 0
        size = value.double().abs() ** power + tiny
        planted, others = (torch.where(one, size, 0).sum(-1, keepdim=True) for one in (own, ~own))
        left = (1 - planted).clamp(min=0) / others.clamp(min=tiny)
        made = size * torch.where(own, 1 / planted.clamp(min=1), left)
        made = made.sqrt().copysign(value) if power == 2 else made
        return torch.where(own.any(-1, keepdim=True), made.to(value.dtype), value)


def _is_filled(draws: Sequence[torch.Tensor], *, is_constant: bool) -> bool:
    """True if each row has the largest value: in an element of every row and draw, or in an input
    that no draw changes."""
    if draws[0].shape[-1:].numel() < 2:
        return False
    rows = [rows_of(one) == one.max() for one in draws]
    length = min(one.shape[-1] for one in rows)
    every = torch.cat([one[:, :length] for one in rows])
    full, chance = every.all(0), length * float(every.double().mean()) ** len(every)
    is_likely = bool(full[[0, -1]].any()) or (chance < MAX_CHANCE and bool(full.any()))
    return (is_likely and len(every) >= MIN_FILLED) or (is_constant and bool(every.any(-1).all()))


def _form(draws: list[torch.Tensor], *, is_constant: bool, permutes: bool) -> str:
    first, floats = draws[0], draws[0].is_floating_point()
    if first.numel() == 1:
        return "free" if floats else "two" if first.dtype is torch.bool else "single"
    rows = [rows_of(one.reshape(1) if not one.ndim else one).double() for one in draws]
    every = torch.cat([one.flatten() for one in rows])
    low, high = every.aminmax()
    length = min(one.shape[-1] for one in rows)

    def holds(check: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        return all(bool(check(one).all()) for one in rows)

    if first.dtype is torch.bool or (low != high and holds(lambda x: (x == low) | (x == high))):
        is_hot = first.ndim > 1 and length > 1 and holds(lambda x: x.sum(-1) == 1)
        return "hot" if is_hot else "two"
    if low == high:
        return "free"
    is_long = length >= MIN_ROW or (first.ndim == 1 and length > 2)
    if is_long and holds(lambda x: x.diff(dim=-1) >= 0):
        is_dense = not floats and holds(lambda x: x.diff(dim=-1) == 1)
        return "distinct" if is_dense else "sorted"
    if not floats:
        places = float(high - low) + 1
        chance = math.exp(-sum(one.numel() for one in rows) * (length - 1) / (2 * places))
        is_design = (permutes or chance < MAX_CHANCE) and length > 1
        is_distinct = is_design and holds(lambda x: x.sort(-1).values.diff(dim=-1) != 0)
        return "distinct" if is_distinct else "free"
    if 1 < length <= MIN_ROW and min(len(one) for one in rows) >= MIN_ORDERED:
        later = [(i, j) for j in range(length) for i in range(j)]
        if any(holds(lambda x, i=i, j=j: x[:, i] <= x[:, j]) for i, j in later):
            return "ordered"
    if first.ndim > 1 and all(
        one.shape[-1] == one.shape[-2] and torch.equal(one, one.mT) for one in draws
    ):
        return "symmetric"
    if low >= 0 and holds(lambda x: (x.sum(-1) - 1).abs() < 1e-2):
        return "sums"
    if first.ndim > 1 and holds(lambda x: (x.square().sum(-1) - 1).abs() < 1e-2):
        return "norms"
    return "whole" if not is_constant and bool((every == every.round()).all()) else "free"
