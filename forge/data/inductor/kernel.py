"""A kernel's body in Triton's own words: without Inductor's functions (runtime_functions.py),
aliases, named constants and unused values.

Each function may change the statements that it is given.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from forge.data.inductor.expressions import Substituted
from forge.data.inductor.runtime_functions import translate
from forge.data.inductor.source import GeneratedKernel, dotted, is_call, names_in, walk

EFFECTS = ("store", "atomic_", "debug_barrier", "device_print", "inline_asm", "static_assert")
"""Beginnings of the names of functions that do more than give a value."""


def plain(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel without Inductor's functions; constexprs that its body fixes are parameters.
    Raises Unanswered for a function without a counterpart, or random numbers."""
    fixed: dict[str, int] = {}
    left: list[ast.stmt] = []
    for node in kernel.body:
        match translate(node):
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=int(value))):
                fixed[name] = value  # `BLOCK_M : tl.constexpr = 64`
            case ast.AnnAssign(target=target, value=ast.Name() as value):
                left.append(ast.Assign(targets=[target], value=value, lineno=0))  # another name
            case ast.Expr(value=value) if is_call(value, "tl.device_assert"):
                pass
            case made:
                left.append(made)
    params = (*kernel.params, *(name for name in fixed if name not in kernel.params))
    constexprs = kernel.constexprs | fixed.keys()
    return replace(kernel, body=left, params=params, constexprs=constexprs, fixed=fixed)


def with_used_parameters(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel without the parameters that its body does not use."""
    used = names_in(*kernel.body)
    params = tuple(name for name in kernel.params if name in used)
    return replace(kernel, params=params, constexprs=kernel.constexprs & set(params))


def with_sizes_as_arguments(kernel: GeneratedKernel, sizes: dict[str, int]) -> GeneratedKernel:
    """The kernel without statements like `xnumel = 256`, where each launch passes that number."""

    def is_repeated(node: ast.stmt) -> bool:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int(value))):
                return sizes.get(name) == value
            case _:
                return False

    return cleaned(replace(kernel, body=[node for node in kernel.body if not is_repeated(node)]))


def cleaned(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel without aliases, constants with names, and unused values."""
    body, before = kernel.body, ""
    while (text := "\n".join(map(ast.unparse, body))) != before:
        before = text
        body = sweep(_inlined(body, kernel.params))
    return replace(kernel, body=body)


def sweep(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that have an effect, or whose values reach one that has."""
    needs: dict[str, set[str]] = {}
    live: set[str] = set()
    for node in walk(*body):
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.Expr() if not _has_effect(node):
                for name in _names(node, ast.Store):
                    needs.setdefault(name, set()).update(_names(node, ast.Load))
            case ast.For(iter=read) | ast.If(test=read) | ast.While(test=read):
                live |= _names(read, ast.Load)
            case ast.stmt():
                live |= _names(node, ast.Load)
    waiting = list(live)
    while waiting:
        for name in needs.get(waiting.pop(), set()) - live:
            live.add(name)
            waiting.append(name)
    return list(_remaining(body, live))


def _remaining(body: list[ast.stmt], live: set[str]) -> Iterator[ast.stmt]:
    for node in body:
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.Expr():
                if _has_effect(node) or not live.isdisjoint(_names(node, ast.Store)):
                    yield node
            case ast.For() | ast.While() | ast.If():
                node.body = list(_remaining(node.body, live))
                node.orelse = list(_remaining(node.orelse, live))
                if node.orelse and not node.body:
                    node.body.append(ast.Pass())
                if node.body:
                    yield node
            case ast.Pass():
                pass
            case _:
                yield node


def _has_effect(node: ast.stmt) -> bool:
    calls = (one for one in walk(node) if isinstance(one, ast.Call))
    return any(dotted(one.func).rpartition(".")[2].startswith(EFFECTS) for one in calls)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {
        one.id for one in walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, context)
    }


def _inlined(body: list[ast.stmt], params: tuple[str, ...]) -> list[ast.stmt]:
    """The statements without names that stand for another name or a constant; none of these stands
    for another one of them."""
    facts = _Facts.of(body, params)
    known: dict[str, ast.expr] = {}
    for name, value in facts.assignments:
        is_once = facts.stores[name] == 1 or (isinstance(value, ast.Name) and facts.is_same(name))
        if is_once and facts.may_replace(name, value) and known.keys().isdisjoint(names_in(value)):
            known[name] = value if facts.has_attributes(name) else _as_operand(value)
    inlining = _Inlining(known)
    return [one for node in body if (one := inlining.visit(node)) is not None]


class _Inlining(Substituted):
    """Replaces names, and removes the statements that gave them."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return super().visit_Name(node) if isinstance(node.ctx, ast.Load) else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        is_alias = dotted(node.targets[0]) in self.known
        return None if is_alias else self.generic_visit(node)


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
        facts = cls(Counter(params), [], {}, {})
        for node in walk(*body):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    facts.assignments.append((name, value))
                    if isinstance(value, ast.Call) and is_call(value, "tl.broadcast_to"):
                        facts.shapes[name] = ast.dump(value.args[1])
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                    facts.uses.setdefault(child.id, []).append(node)
                elif isinstance(child, ast.Name):
                    facts.stores[child.id] += 1
        return facts

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
                number = _as_operand(value)
                return _is_number(number) and all(_may_hold(one, dotted(kind)) for one in uses)
            case _:
                return _is_number(value) and not self.has_attributes(name)

    def has_attributes(self, name: str) -> bool:
        """True if a name is used as `name.to(...)`."""
        return any(isinstance(one, ast.Attribute) for one in self.uses.get(name, []))


def _as_operand(value: ast.expr) -> ast.expr:
    """The value as it stands in an expression."""
    match value:
        case ast.Call(args=[_, number, kind]) if is_call(value, "tl.full"):
            return _as_float(number) if dotted(kind) == "tl.float32" else number
        case ast.Call(args=[other, _]) if is_call(value, "tl.broadcast_to"):
            return other
        case _:
            return value


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
