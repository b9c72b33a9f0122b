"""Expressions of sizes: equality of sums and products, and their readable form."""

from __future__ import annotations

import ast
import copy
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TypeVar

from forge.data.inductor.source import called, expression, walk

Node = TypeVar("Node", bound=ast.AST)

Polynomial = Counter[tuple[str, ...]]
"""Coefficients by factors, which are texts in order; no factors for the constant."""
MAX_TERMS = 400
TEMPORARY = re.compile(r"_?tmp\d+\w*$")
"""Names of values that a kernel loads or computes."""


def polynomial(node: ast.expr, *, is_expanded: bool = True) -> Polynomial:
    """The sum of products that an expression is; what is neither is a factor, and so is a sum in a
    product unless it is expanded."""
    match node:
        case ast.Constant(value=int(value)):
            made = Polynomial({(): int(value)})
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            made = Polynomial({key: -value for key, value in polynomial(inner).items()})
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            made = Polynomial(polynomial(left, is_expanded=is_expanded))
            sign = 1 if isinstance(op, ast.Add) else -1
            for key, value in polynomial(right, is_expanded=is_expanded).items():
                made[key] += sign * value
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if is_expanded:
            made = _product(polynomial(left), polynomial(right), node)
        case ast.BinOp(op=ast.Mult()):
            numbers = [n for one in _factors(node) if (n := _integer(one)) is not None]
            others = (ast.unparse(one) for one in _factors(node) if _integer(one) is None)
            made = Polynomial({tuple(sorted(others)): math.prod(numbers)})
        case _:
            made = Polynomial({(ast.unparse(node),): 1})
    return Polynomial({key: value for key, value in made.items() if value})


def _product(left: Polynomial, right: Polynomial, node: ast.expr) -> Polynomial:
    if len(left) * len(right) > MAX_TERMS:
        return Polynomial({(ast.unparse(node),): 1})
    made = Polynomial()
    for one, a in left.items():
        for other, b in right.items():
            made[tuple(sorted([*one, *other]))] += a * b
    return made


def product(sizes: Iterable[ast.expr]) -> Polynomial:
    """The product of some expressions."""
    made = Polynomial({(): 1})
    for one in sizes:
        made = _product(made, polynomial(one), one)
    return made


class _Tidied(ast.NodeTransformer):
    def __init__(self, *, is_kernel: bool) -> None:
        self.is_kernel = is_kernel

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        left, right, value = node.left, node.right, _integer(node.left)
        match left, node.op, right:
            case ast.Constant(int(a)), op, ast.Constant(int(b)) if b and a >= b:
                return ast.Constant(FOLDED[type(op)](a, b)) if type(op) in FOLDED else node
            case _, ast.FloorDiv(), ast.Constant(int(by)):
                return (not self.is_kernel and _ceiling(left, by)) or _divided(node, by)
            case _, ast.Add(), _ if value is not None:
                return _plus(right, value)
            case _, ast.Add(), ast.UnaryOp(op=ast.USub(), operand=positive):
                return ast.BinOp(left=left, op=ast.Sub(), right=positive)
            case ast.Constant(int(1)), ast.Mult(), other:
                return other
            case (other, ast.Mult(), ast.Constant(int(1))) | (
                other, ast.Add() | ast.Sub(), ast.Constant(int(0)),
            ):  # fmt: skip
                return other
            case _ if _has_values(node):
                return node
            case (_, ast.Mod(), ast.Constant(int(1))) | (_, ast.Mult(), ast.Constant(int(0))):
                return ast.Constant(0)
            case ast.BinOp(first, ast.Add(), ast.Constant(int(number))), ast.Add(), _:
                more = _integer(right)
                if more is not None:
                    return _plus(first, number + more)
                return _plus(ast.BinOp(left=first, op=ast.Add(), right=right), number)
            case _:
                return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        return node.value if isinstance(node.value, ast.Constant) else node


FOLDED: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
"""Operators of whole numbers, the first at least as large as the second, which is not 0."""


def _has_values(node: ast.expr) -> bool:
    """True for an expression of values, which may be floats: no other order, and NaN times 0."""
    return any(
        isinstance(one, ast.Call) or (isinstance(one, ast.Name) and TEMPORARY.match(one.id))
        for one in walk(node)
    )


def _integer(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int(value))):
            return -value
        case _:
            return None


def _plus(node: ast.expr, value: int) -> ast.expr:
    if value == 0:
        return node
    op = ast.Add() if value > 0 else ast.Sub()
    return ast.BinOp(left=node, op=op, right=ast.Constant(abs(value)))


def _ceiling(left: ast.expr, by: int) -> ast.expr | None:
    """`triton.cdiv(n, by)` for `(n + by - 1) // by` of a block size."""
    match left:
        case ast.BinOp(inner, ast.Add(), ast.Constant(int(rest))) if (
            rest == by - 1 and by >= 16 and by & (by - 1) == 0
        ):
            return called("triton.cdiv", [inner, ast.Constant(by)])
        case _:
            return None


def _divided(node: ast.BinOp, by: int) -> ast.expr:
    match node.left:
        case _ if by == 1:
            return node.left
        case ast.BinOp(inner, ast.FloorDiv(), ast.Constant(int(first))):
            return ast.BinOp(left=inner, op=ast.FloorDiv(), right=ast.Constant(first * by))
        case _:
            return node


def tidy(node: Node, *, is_kernel: bool = False) -> Node:
    """The expression with constants folded and last; the node may change.

    Outside a kernel, a division that rounds up becomes `triton.cdiv`.
    """
    return _Tidied(is_kernel=is_kernel).visit(node)


def nested(node: ast.expr) -> ast.expr:
    """A sum of products with common factors outside, in the shorter of two forms: with sums that
    are factors multiplied out, or as they are."""
    forms = [_nested(polynomial(node, is_expanded=one)) for one in (True, False)]
    return min(forms, key=lambda one: len(ast.unparse(one)))


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            yield from _factors(left)
            yield from _factors(right)
        case _:
            yield node


def _nested(terms: Polynomial) -> ast.expr:
    """A sum of products with common factors outside: `(n * channels + c) * width + column`. The
    factor of most terms comes last, so that an index is read from its first axis to its last."""
    counts = Counter(name for key in terms for name in set(key))
    name, count = max(counts.items(), key=lambda one: (one[1], one[0]), default=("", 0))
    if count < 2:
        return summed(terms)
    inner, rest = Polynomial(), Polynomial()
    for key, value in terms.items():
        if name in key:
            place = key.index(name)
            inner[(*key[:place], *key[place + 1 :])] = value
        else:
            rest[key] = value
    made = ast.BinOp(left=_nested(inner), op=ast.Mult(), right=expression(name))
    if not rest:
        return made
    return _added(made, _nested(rest))


def _added(left: ast.expr, right: ast.expr) -> ast.expr:
    match right:
        case ast.BinOp(left=first, op=ast.Add() | ast.Sub() as op, right=last):
            return ast.BinOp(left=_added(left, first), op=op, right=last)
        case ast.Constant(value=int(value)) if value < 0:
            return ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(-value))
        case _:
            return ast.BinOp(left=left, op=ast.Add(), right=right)


def summed(terms: Polynomial) -> ast.expr:
    """A polynomial as an expression, the longest products first."""
    made: ast.expr | None = None
    for key, value in sorted(terms.items(), key=lambda one: (one[1] < 0, -len(one[0]), one[0])):
        factors = [expression(one) for one in key]
        size = abs(value) if made is not None else value
        if size != 1 or not factors:
            factors.insert(0, ast.Constant(size))
        part = _multiplied(factors)
        if made is None:
            made = part
        else:
            op = ast.Add() if value > 0 else ast.Sub()
            made = ast.BinOp(left=made, op=op, right=part)
    return made or ast.Constant(0)


def _multiplied(factors: Sequence[ast.expr]) -> ast.expr:
    return reduce(lambda one, other: ast.BinOp(left=one, op=ast.Mult(), right=other), factors)


AXES = ("batch", "channels", "length", "depth", "height", "width", "features")
"""Ends of the names of sizes, the first axis first."""


def in_order_of_axes(node: ast.expr) -> ast.expr:
    """The expression with products of sizes from the first axis to the last."""

    def place(one: ast.expr) -> int:
        name = re.sub(r"_\d+$", "", ast.unparse(one)).rpartition("_")[2]
        return AXES.index(name) if name in AXES else -1

    match node:
        case ast.BinOp(op=ast.Mult()):
            return _multiplied(sorted(_factors(node), key=place))
        case ast.BinOp() | ast.Call():
            for name, inner in ast.iter_fields(node):
                if isinstance(inner, ast.expr):
                    setattr(node, name, in_order_of_axes(inner))
                elif isinstance(inner, list):
                    setattr(node, name, [in_order_of_axes(one) for one in inner])
            return node
        case _:
            return node


class Substituted(ast.NodeTransformer):
    """Replaces names by copies of expressions."""

    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.known[node.id]) if node.id in self.known else node
