"""Replaces names in a kernel that stand for another name, or for a constant."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.data.inductor.source import CHILDREN, Transformer, copied, dotted, is_call, walk

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class Inlining(Transformer):
    """Replaces names that stand for another name or a constant."""

    known: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    has_casts: bool = False
    """True if the body has a cast of `tl.full`, which may become a `tl.full` of floats."""
    names: dict[ast.stmt, set[str]] = field(default_factory=dict[ast.stmt, set[str]])
    """Names in each statement of the body."""

    @classmethod
    def of(cls, body: list[ast.stmt], params: tuple[str, ...]) -> Inlining:
        """The aliases and constants of a body, but none that stands for another one of them."""
        facts = _Facts.of(body, params)
        known: dict[str, ast.expr] = {}
        for name, value in facts.assigned():
            if facts.may_replace(name, value) and not _mentions(value, known):
                is_cast = facts.has_attributes(name)
                known[name] = value if is_cast else facts.as_operand(value)
        return cls(known=known, has_casts=facts.has_casts, names=facts.names)

    @property
    def is_done(self) -> bool:
        """True if a visit would change nothing."""
        return not self.known and not self.has_casts

    def applied(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements with all names replaced, without those that gave the names."""
        if self.has_casts:
            return [one for node in body if (one := self.visit(node)) is not None]
        changed: list[ast.stmt] = []
        for node in body:
            is_touched = not self.known.keys().isdisjoint(self.names[node])
            new = self.visit(node) if is_touched else node
            if new is not None:
                changed.append(new)
        return changed

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return _as_full_of_floats(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.known and isinstance(node.ctx, ast.Load):
            value = self.known[node.id]
            return value if isinstance(value, ast.Name | ast.Constant) else copied(value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        match node.targets:
            case [ast.Name(id=name)] if name in self.known:
                return None
            case _:
                return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if isinstance(node.target, ast.Name) and node.target.id in self.known:
            return None
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
    has_casts: bool
    """True if `tl.full(...)` is cast somewhere."""
    names: dict[ast.stmt, set[str]]
    """Names in each statement of the body."""

    @classmethod
    def of(cls, body: list[ast.stmt], params: tuple[str, ...]) -> _Facts:
        """The facts of all statements, in one pass."""
        stores: Counter[str] = Counter(params)
        assignments: list[tuple[str, ast.expr]] = []
        uses: dict[str, list[ast.AST]] = {}
        names: dict[ast.stmt, set[str]] = {}
        mentioned: set[str] = set()
        has_casts = False
        top = set(body)
        stack: list[Any] = [*reversed(body)]
        while stack:
            node = stack.pop()
            kind = type(node)
            if node in top:
                mentioned = names[node] = set()
            if kind is ast.Assign or kind is ast.AnnAssign:
                target = node.target if kind is ast.AnnAssign else _only(node.targets)
                if type(target) is ast.Name and node.value is not None:
                    assignments.append((target.id, node.value))
            elif kind is ast.Attribute and node.attr == "to":
                has_casts = has_casts or is_call(node.value, "tl.full")
            for name in CHILDREN[kind]:
                value = getattr(node, name, None)
                for child in value if type(value) is list else (value,):
                    if type(child) is not ast.Name:
                        if child is not None:
                            stack.append(child)
                        continue
                    mentioned.add(child.id)
                    if type(child.ctx) is ast.Load:
                        uses.setdefault(child.id, []).append(node)
                    elif type(child.ctx) is ast.Store:
                        stores[child.id] += 1
        return cls(stores, assignments, uses, _broadcast(assignments), has_casts, names)

    def assigned(self) -> Iterator[tuple[str, ast.expr]]:
        """Names that are assigned once, with their values."""
        for name, value in self.assignments:
            if self.stores[name] == 1:
                yield name, value

    def may_replace(self, name: str, value: ast.expr) -> bool:
        """True if each use of a name may be its value instead."""
        match value:
            case ast.Name(id=other):
                return self.stores[other] == 1
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


def _only(targets: list[ast.expr]) -> ast.expr | None:
    return targets[0] if len(targets) == 1 else None


def _broadcast(assignments: list[tuple[str, ast.expr]]) -> dict[str, str]:
    """Shapes to which names are broadcast."""
    return {
        name: ast.dump(value.args[1])
        for name, value in assignments
        if isinstance(value, ast.Call)
        and len(value.args) == 2
        and is_call(value, "tl.broadcast_to")
    }


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
