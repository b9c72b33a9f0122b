"""Finds the values that a reference looks for in its inputs, as numbers that it compares with.

Called by sets.py for plants.py, which plants them.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

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
        "bits": "bitwise|shift",
        "extrema": r"\A(?!clamp|maximum|minimum)(.*max|.*min|sort|topk|.*sumexp|masked_fill)",
    }.items()
}
"""Names of operations by what a reference does with them: an integer of "sizes" may be one of
memory or a number of steps of Python's; beside "extrema" a kernel may have -1e6 for infinity."""
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
        between = [(a + b) / 2 for a, b in itertools.pairwise(sorted(constants))]
        near = {one + step for one in constants if type(one) is int for step in (-1, 0, 1)}
        return replace(
            self,
            constants=tuple(sorted({*self.constants, *_worth(between), *_worth(constants)})),
            integers=tuple(sorted({*self.integers, *(one for one in near if abs(one) < 1 << 31)})),
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
        floats = {sign * one for one in host | _floats_in(nodes) for sign in (1.0, -1.0)}
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


def _floats_in(nodes: Sequence[ast.AST]) -> set[float]:
    """Floats anywhere in Python code: a reference may behave otherwise around them."""
    every = [one for one in nodes if isinstance(one, ast.Constant)]
    return {float(one.value) for one in every if type(one.value) is float}
