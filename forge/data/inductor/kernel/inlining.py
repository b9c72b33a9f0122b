"""Replaces names in a kernel that stand for another name, or for a constant."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.data.inductor.source import dotted, is_call, walk

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class Inlining(ast.NodeTransformer):
    """Replaces names that stand for another name or a constant."""

    known: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])

    @classmethod
    def of(cls, body: list[ast.stmt], params: tuple[str, ...]) -> Inlining:
        """The aliases and constants of a body, but none that stands for another one of them."""
        facts = _Facts.of(body, params)
        known: dict[str, ast.expr] = {}
        for name, value in facts.assigned():
            if facts.may_replace(name, value) and not _mentions(value, known):
                is_cast = facts.has_attributes(name)
                known[name] = value if is_cast else facts.as_operand(value)
        return cls(known)

    def applied(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements with all names replaced, without those that gave the names."""
        return [one for node in body if (one := self.visit(node)) is not None]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return _as_full_of_floats(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        is_read = isinstance(node.ctx, ast.Load)
        return copy.deepcopy(self.known[node.id]) if is_read and node.id in self.known else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        match node.targets:
            case [ast.Name(id=name)] if name in self.known:
                return None
            case _:
                return self.generic_visit(node)


def _mentions(value: ast.expr, known: dict[str, ast.expr]) -> bool:
    return any(isinstance(one, ast.Name) and one.id in known for one in walk(value))


@dataclass(frozen=True, slots=True)
class _Facts:
    """How often names are assigned, and where they are used."""

    stores: Counter[str]
    assignments: list[tuple[str, ast.expr]]
    """Names that a plain assignment gives a value, in order."""
    uses: dict[str, list[ast.AST]]
    """Parents of the uses of each name."""
    shapes: dict[str, str]
    """Shape to which a name was broadcast."""

    @classmethod
    def of(cls, body: list[ast.stmt], params: tuple[str, ...]) -> _Facts:
        """The facts of all statements."""
        stores: Counter[str] = Counter(params)
        assignments: list[tuple[str, ast.expr]] = []
        uses: dict[str, list[ast.AST]] = {}
        for node in walk(*body):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    assignments.append((name, value))
                case _:
                    pass
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                    uses.setdefault(child.id, []).append(node)
                elif isinstance(child, ast.Name):
                    stores[child.id] += 1
        shapes = {
            name: ast.dump(value.args[1])
            for name, value in assignments
            if isinstance(value, ast.Call) and is_call(value, "tl.broadcast_to")
        }
        return cls(stores, assignments, uses, shapes)

    def assigned(self) -> Iterator[tuple[str, ast.expr]]:
        """Names that are assigned once, or always the same, with their values."""
        for name, value in self.assignments:
            if self.stores[name] == 1 or (isinstance(value, ast.Name) and self.is_same(name)):
                yield name, value

    def is_same(self, name: str) -> bool:
        """True if a name has one value, as the index of a row in each loop over it."""
        values = [ast.dump(value) for other, value in self.assignments if other == name]
        return self.stores[name] == 1 or (self.stores[name] == len(values) and len({*values}) == 1)

    def may_replace(self, name: str, value: ast.expr) -> bool:
        """True if each use of a name may be its value instead."""
        match value:
            case ast.Name(id=other):
                return self.is_same(other)
            case ast.Call(args=[ast.Name(id=other), shape]) if is_call(value, "tl.broadcast_to"):
                is_once = self.stores[other] == 1
                return is_once and self.shapes.get(other) == ast.dump(shape)
            case ast.Call(args=[_, _, kind]) if is_call(value, "tl.full"):
                uses = self.uses.get(name, [])
                if uses and all(_is_cast(one) for one in uses):
                    return True
                number = self.as_operand(value)
                return _is_number(number) and all(_may_hold(one, dotted(kind)) for one in uses)
            case _:
                return _is_number(value) and not self.has_attributes(name)

    def as_operand(self, value: ast.expr) -> ast.expr:
        """The value as it stands in an expression."""
        match value:
            case ast.Call(args=[_, number, kind]) if is_call(value, "tl.full"):
                return _as_float(number) if dotted(kind) == "tl.float32" else number
            case ast.Call(args=[other, _]) if is_call(value, "tl.broadcast_to"):
                return other
            case _:
                return value

    def has_attributes(self, name: str) -> bool:
        """True if a name is used as `name.to(...)`."""
        return any(isinstance(one, ast.Attribute) for one in self.uses.get(name, []))


def _is_cast(parent: ast.AST) -> bool:
    return isinstance(parent, ast.Attribute) and parent.attr == "to"


def _as_full_of_floats(node: ast.Call) -> ast.expr:
    """`tl.full(shape, 64, tl.int32).to(tl.float32)` is one of floats."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Call(args=[shape, number, kind]) as full, attr="to"),
            args=[wanted],
            keywords=[],
        ) if is_call(full, "tl.full") and dotted(wanted) == "tl.float32" and _is_number(number):
            if dotted(kind).startswith("tl.int"):
                args = [shape, _as_float(number), wanted]
                return ast.Call(func=full.func, args=args, keywords=[])
            return node
        case _:
            return node


def _is_number(node: ast.expr) -> bool:
    """True for numbers, also negative and infinite ones."""
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return True
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_number(inner)
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant()]):
            return True
        case _:
            return False


def _as_float(node: ast.expr) -> ast.expr:
    match node:
        case ast.Constant(value=bool() | int() as value):
            return ast.Constant(float(value))
        case ast.UnaryOp(operand=inner):
            return ast.UnaryOp(op=node.op, operand=_as_float(inner))
        case _:
            return node


def _may_hold(parent: ast.AST, kind: str) -> bool:
    """True if a plain number means the same there as a tensor of one such number.

    A comparison takes either. `tl.maximum` makes a tensor of it. In arithmetic a float may stand,
    since Inductor computes in fp32; an integer would take the other side's width.
    """
    match parent:
        case ast.Compare(left=left, comparators=[right]):
            return not (_is_number(left) or _is_number(right))
        case ast.BinOp(left=left, right=right):
            return kind == "tl.float32" and not (_is_number(left) or _is_number(right))
        case ast.Call(args=[_, _]):
            is_chosen = dotted(parent.func) in ("tl.maximum", "tl.minimum")
            return is_chosen and kind in ("tl.float32", "tl.int32")
        case _:
            return False
