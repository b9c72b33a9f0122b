"""Removes statements of a kernel whose values nobody uses."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from forge.data.inductor.source import dotted, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

EFFECTS = ("store", "atomic_", "debug_barrier", "device_print", "inline_asm", "static_assert")
"""Beginnings of the names of functions that do more than give a value."""


def sweep(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that have an effect, or whose values reach one that has."""
    needs: dict[str, set[str]] = {}
    live: set[str] = set()
    effects = {node for node in _statements(body) if _has_effect(node)}
    for node in _statements(body):
        match node:
            case ast.Assign() | ast.AnnAssign() if node not in effects:
                used = _loads(node.value) if node.value else set[str]()
                for name in _targets(node):
                    needs.setdefault(name, set()).update(used)
            case ast.For():
                live |= _loads(node.iter)
            case ast.If() | ast.While():
                live |= _loads(node.test)
            case ast.Expr() if node not in effects:
                pass
            case _:
                live |= _loads(node)
    waiting = list(live)
    while waiting:
        for name in needs.get(waiting.pop(), set()) - live:
            live.add(name)
            waiting.append(name)
    return list(_kept(body, live, effects))


def _kept(body: list[ast.stmt], live: set[str], effects: set[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        match node:
            case ast.Assign() | ast.AnnAssign():
                if node in effects or live.intersection(_targets(node)):
                    yield node
            case ast.Expr():
                if node in effects:
                    yield node
            case ast.For() | ast.While() | ast.If():
                node.body = list(_kept(node.body, live, effects))
                node.orelse = list(_kept(node.orelse, live, effects))
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
    return isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr) and any(
        isinstance(one, ast.Call) and dotted(one.func).rpartition(".")[2].startswith(EFFECTS)
        for one in walk(node)
    )


def _targets(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {one.id for made in targets for one in walk(made) if isinstance(one, ast.Name)}


def _loads(node: ast.AST) -> set[str]:
    return {
        one.id for one in walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
    }
