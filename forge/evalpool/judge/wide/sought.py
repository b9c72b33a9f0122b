"""Finds the values that a reference looks for in its inputs, as numbers that it compares with.

Called by sets.py for plants.py, which plants them.
"""

from __future__ import annotations

import ast
import operator
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.wide.reference import ORDERS, PUTS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from forge.evalpool.judge.numbers.opcount import OpCounter

MIN_CONSTANT, MAX_CONSTANT = 1e-12, 1e12
"""Magnitudes of constants worth planting; larger ones stand for infinity."""
MAX_FACTOR = 1e4
"""Factors and exponents of constants that are computed."""
INDEXING = (
    *("index", "gather", "scatter", "embedding", "take", "one_hot", "nll_loss", "bincount"),
    *("bucket", "repeat_interleave", "ctc_loss", "put", "_local_scalar_dense"),
)
"""Parts of names of operations that take indices, or read one into Python."""
WRAPPING = {"index", "index_put", "index_put_", "take", "put", "put_"}
"""Operations that count a negative index from the end."""
SIZING = ("one_hot", "bincount", "repeat_interleave", "ctc_loss", "_local_scalar_dense", "histc")
"""Parts of names of operations of whose results integers are the sizes, or that fail badly."""
ADDING = {"index_add", "index_add_", "scatter_add", "scatter_add_", "bincount"}
"""Operations that add to places that an index names."""
IGNORED = re.compile(r"\bignore_index\s*=\s*(-?\d+)")
PERMUTES = re.compile(r"randperm|argsort|topk|multinomial|sample\(")
"""In a source whose indices may all be different by design, though it could be chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """The values that a reference looks for in its inputs."""

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
    has_indices: bool = True
    """True if an integer may be an index, which must stay in its range."""
    is_wrapping: bool = True
    """True if a negative index may be no error."""
    has_sizes: bool = True
    """True if one may be a size of memory, or a number of steps of Python's."""
    may_be_undefined: bool = True
    """True if torch may leave its results open (wide/reference.py)."""
    is_comparing: bool = True
    """True if it compares two tensors: elements are hardly ever equal by chance."""
    has_bits: bool = True
    """True if it computes with the bits of integers."""
    is_bounded: bool = False
    """True if it compares something with numbers beyond all that it computes on given inputs."""
    is_accumulating: bool = True
    """True if it adds to places that an index names."""
    is_adding: bool = True
    """True if it adds elements."""
    permutes: bool = True
    """True if it may draw indices that are all different by design."""

    @classmethod
    def of(cls, counted: OpCounter | None, source: str, scopes: Sequence[dict[str, Any]]) -> Looks:
        """The values that one call of a reference and its source show.

        Args:
            counted: from `count_work`; None where the call cannot be watched.
            scopes: names that its code may compare with: of its module, of its model.
        """
        ignored = tuple(int(one) for one in IGNORED.findall(source))
        permutes = PERMUTES.search(source) is not None
        nodes = list(ast.walk(ast.parse(source)))
        host = _compared(nodes, scopes)
        floats = {sign * one for one in host | _floats_in(nodes) for sign in (1.0, -1.0)}
        near = {round(one) + step for one in host for step in (-1, 0, 1)}
        near = {one for one in near if one >= 0 or min(host) < 0}  # a 0 alone may bound counts
        if counted is None:
            return cls(constants=_worth(floats), ignored=ignored, permutes=permutes)
        constants = counted.constants | floats
        constants |= {unit * part for unit in counted.units for part in (0.5, 1.0, 1.5, 2.0)}
        return cls(
            constants=_worth(constants),
            integers=tuple(sorted(one for one in counted.integers | near if abs(one) < 1 << 31)),
            compared=frozenset({*counted.compared, *ignored}),
            special=tuple(counted.specials),
            ignored=ignored,
            has_indices=any(part in name for name in counted.names for part in INDEXING)
            or ".tolist(" in source,
            is_wrapping=not WRAPPING.isdisjoint(counted.names),
            has_sizes=any(part in name for part in SIZING for name in counted.names)
            or ".tolist(" in source,
            may_be_undefined=counted.is_truncating or not (PUTS | ORDERS).isdisjoint(counted.names),
            is_comparing=counted.is_comparing,
            has_bits=any("bitwise" in name or "shift" in name for name in counted.names),
            is_bounded=counted.is_bounded,
            is_accumulating=not ADDING.isdisjoint(counted.names),
            is_adding=any(name.endswith(("sum", "mm", "mean")) for name in counted.names),
            permutes=permutes,
        )


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


def _floats_in(nodes: Sequence[ast.AST]) -> set[float]:
    """Floats anywhere in Python code: a reference may behave otherwise around them."""
    every = [one for one in nodes if isinstance(one, ast.Constant)]
    return {float(one.value) for one in every if type(one.value) is float}
