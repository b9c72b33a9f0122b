"""Expressions of sizes: equality of sums and products, and their readable form."""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from typing import TYPE_CHECKING

from forge.data.inductor.source import walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Polynomial = Counter[tuple[str, ...]]
"""Coefficients by factors, which are texts in order; no factors for the constant."""
MAX_TERMS = 400
TEMPORARY = re.compile(r"_?tmp\d+\w*$")
"""Names of values that a kernel loads or computes."""


def polynomial(node: ast.expr) -> Polynomial:
    """The sum of products that an expression is; what is neither is a factor."""
    match node:
        case ast.Constant(value=int(value)):
            made = Polynomial({(): int(value)})
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            made = Polynomial({key: -value for key, value in polynomial(inner).items()})
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            made = Polynomial(polynomial(left))
            sign = 1 if isinstance(op, ast.Add) else -1
            for key, value in polynomial(right).items():
                made[key] += sign * value
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            made = _product(polynomial(left), polynomial(right), node)
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
        match node:
            case ast.BinOp(left=ast.Constant(value=a), op=op, right=ast.Constant(value=b)) if (
                type(a) is int and type(b) is int
            ):
                return _folded(a, op, b) or node
            case ast.BinOp(op=ast.FloorDiv(), left=left, right=ast.Constant(value=int(by))):
                return (not self.is_kernel and _ceiling(left, by)) or _divided(node, by)
            case ast.BinOp(left=left, op=ast.Add(), right=right) if (
                value := _integer(left)
            ) is not None:
                return _plus(right, value)
            case ast.BinOp(
                left=left, op=ast.Add(), right=ast.UnaryOp(op=ast.USub(), operand=right)
            ):
                return ast.BinOp(left=left, op=ast.Sub(), right=right)
            case ast.BinOp(left=ast.Constant(value=int(1)), op=ast.Mult(), right=other):
                return other
            case ast.BinOp(left=other, op=ast.Mult(), right=ast.Constant(value=int(1))):
                return other
            case ast.BinOp(left=other, op=ast.Add() | ast.Sub(), right=ast.Constant(value=int(0))):
                return other
            case ast.BinOp(op=ast.Mult(), right=ast.Constant(value=int(0)) as zero) if (
                not _has_values(node)
            ):
                return zero
            case ast.BinOp(
                left=ast.BinOp(left=first, op=ast.Add(), right=ast.Constant(value=int(value))),
                op=ast.Add(), right=right,
            ) if not _has_values(node):  # fmt: skip
                more = _integer(right)
                if more is not None:
                    return _plus(first, value + more)
                return _plus(ast.BinOp(left=first, op=ast.Add(), right=right), value)
            case _:
                return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        return node.value if isinstance(node.value, ast.Constant) else node


def _has_values(node: ast.expr) -> bool:
    """True for an expression of values, which may be floats: no other order, and NaN times 0."""
    return any(
        isinstance(one, ast.Call) or (isinstance(one, ast.Name) and TEMPORARY.match(one.id))
        for one in walk(node)
    )


def _integer(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
        case _:
            return None


def _folded(a: int, op: ast.operator, b: int) -> ast.expr | None:
    match op:
        case ast.Add():
            return ast.Constant(a + b)
        case ast.Sub() if a >= b:
            return ast.Constant(a - b)
        case ast.Mult():
            return ast.Constant(a * b)
        case ast.FloorDiv() if b > 0 and a >= 0:
            return ast.Constant(a // b)
        case ast.Mod() if b > 0 and a >= 0:
            return ast.Constant(a % b)
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
        case ast.BinOp(left=inner, op=ast.Add(), right=ast.Constant(value=int(rest))) if (
            rest == by - 1 and by >= 16 and by & (by - 1) == 0
        ):
            function = ast.Attribute(
                value=ast.Name(id="triton", ctx=ast.Load()), attr="cdiv", ctx=ast.Load()
            )
            return ast.Call(func=function, args=[inner, ast.Constant(by)], keywords=[])
        case _:
            return None


def _divided(node: ast.BinOp, by: int) -> ast.expr:
    return node.left if by == 1 else node


def tidy(node: ast.AST, *, is_kernel: bool = False) -> ast.AST:
    """The expression with constants folded and last; the node may change.

    Outside a kernel, a division that rounds up becomes `triton.cdiv`.
    """
    return _Tidied(is_kernel=is_kernel).visit(node)


class Substituted(ast.NodeTransformer):
    """Replaces names by copies of expressions."""

    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.known[node.id]) if node.id in self.known else node
