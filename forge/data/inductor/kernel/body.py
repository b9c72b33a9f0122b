"""A kernel's body in Triton's own words: no aliases, no named constants, no unused values.

Each function may change the statements that it is given.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from forge.data.inductor.kernel.inlining import Inlining
from forge.data.inductor.kernel.runtime_functions import translate
from forge.data.inductor.source import dotted, is_call, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.data.inductor.source import GeneratedKernel

MAX_ROUNDS = 50
EFFECTS = ("store", "atomic_", "debug_barrier", "device_print", "inline_asm", "static_assert")
"""Beginnings of the names of functions that do more than give a value."""


def plain(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel without Inductor's functions; constexprs that its body fixes are parameters.

    Raises:
        NotRewritten: a function without a counterpart, or random numbers.
    """
    body = [_translated(node) for node in kernel.body]
    fixed: dict[str, int] = {}
    left = [node for node in body if not _is_fixed(node, fixed) and not _is_assertion(node)]
    params = (*kernel.params, *(name for name in fixed if name not in kernel.params))
    constexprs = kernel.constexprs | fixed.keys()
    return replace(kernel, body=left, params=params, constexprs=constexprs, fixed=fixed)


def with_used_parameters(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel without the parameters that its body does not use."""
    used = {one.id for one in walk(*kernel.body) if isinstance(one, ast.Name)}
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

    left = [node for node in kernel.body if not is_repeated(node)]
    return cleaned(replace(kernel, body=left))


def _translated(node: ast.stmt) -> ast.stmt:
    made = translate(node)
    assert isinstance(made, ast.stmt)
    match made:
        case ast.AnnAssign(target=ast.Name() as name, value=ast.Name() as value):
            return ast.Assign(targets=[name], value=value, lineno=0)  # RBLOCK, another name
        case _:
            return made


def _is_fixed(node: ast.stmt, fixed: dict[str, int]) -> bool:
    """True for `XBLOCK: tl.constexpr = 1`, which becomes a parameter with that value."""
    match node:
        case ast.AnnAssign(
            target=ast.Name(id=name), annotation=kind, value=ast.Constant(value=int(value))
        ) if dotted(kind) == "tl.constexpr":
            fixed[name] = value
            return True
        case _:
            return False


def _is_assertion(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and is_call(node.value, "tl.device_assert")


def cleaned(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel without aliases, constants with names, and unused values."""
    body, before = kernel.body, ""
    for _ in range(MAX_ROUNDS):
        text = "\n".join(map(ast.unparse, body))
        if text == before:
            break
        before = text
        body = sweep(Inlining.of(body, kernel.params).applied(body))
    return replace(kernel, body=body)


def sweep(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that have an effect, or whose values reach one that has."""
    needs: dict[str, set[str]] = {}
    live: set[str] = set()
    for node in _statements(body):
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.Expr() if not _has_effect(node):
                for name in _names(node, ast.Store):
                    needs.setdefault(name, set()).update(_names(node, ast.Load))
            case ast.For():
                live |= _names(node.iter, ast.Load)
            case ast.If() | ast.While():
                live |= _names(node.test, ast.Load)
            case _:
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


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in ("body", "orelse"):
            yield from _statements(getattr(node, part, []))


def _has_effect(node: ast.stmt) -> bool:
    calls = (one for one in walk(node) if isinstance(one, ast.Call))
    return any(dotted(one.func).rpartition(".")[2].startswith(EFFECTS) for one in calls)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {
        one.id for one in walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, context)
    }
