"""Removes statements of a kernel whose values nobody uses."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.data.inductor.source import CHILDREN, dotted, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

EFFECTS = ("store", "atomic_", "debug_barrier", "device_print", "inline_asm", "static_assert")
"""Beginnings of the names of functions that do more than give a value."""


@dataclass(frozen=True, slots=True)
class _Use:
    """Names in a statement that may give values, do something, or both."""

    targets: set[str]
    """Names that an assignment gives values."""
    value: set[str]
    """Names that its value reads."""
    loads: set[str]
    """Names that the whole statement reads."""
    has_effect: bool


def sweep(body: list[ast.stmt]) -> tuple[list[ast.stmt], bool]:
    """The statements that have an effect, or whose values reach one that has.

    The flag is True if another sweep would remove nothing: no loop or branch has gone.
    """
    needs: dict[str, set[str]] = {}
    live: set[str] = set()
    uses: dict[ast.stmt, _Use] = {}
    for node in _statements(body):
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.Expr():
                use = uses[node] = _use(node)
                if use.has_effect:
                    live |= use.loads
                for name in () if use.has_effect else use.targets:
                    needs.setdefault(name, set()).update(use.value)
            case ast.For():
                live |= _loads(node.iter)
            case ast.If() | ast.While():
                live |= _loads(node.test)
            case _:
                live |= _loads(node)
    waiting = list(live)
    while waiting:
        for name in needs.get(waiting.pop(), set()) - live:
            live.add(name)
            waiting.append(name)
    gone: list[ast.stmt] = []
    return list(_kept(body, live, uses, gone)), not gone


def _kept(
    body: list[ast.stmt], live: set[str], uses: dict[ast.stmt, _Use], gone: list[ast.stmt]
) -> Iterator[ast.stmt]:
    """The statements to keep; loops and branches that become empty go to `gone`."""
    for node in body:
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.Expr():
                use = uses[node]
                if use.has_effect or not live.isdisjoint(use.targets):
                    yield node
            case ast.For() | ast.While() | ast.If():
                node.body = list(_kept(node.body, live, uses, gone))
                node.orelse = list(_kept(node.orelse, live, uses, gone))
                if node.orelse and not node.body:
                    node.body.append(ast.Pass())
                if node.body:
                    yield node
                else:
                    gone.append(node)
            case ast.Pass():
                pass
            case _:
                yield node


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in ("body", "orelse"):
            yield from _statements(getattr(node, part, []))


def _use(node: ast.Assign | ast.AnnAssign | ast.Expr) -> _Use:
    """The names in a statement, found in one pass."""
    if isinstance(node, ast.Expr):
        targets, value = list[ast.expr](), node.value
    else:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
    loads, _, has_effect = _names_and_effect(value)
    if len(targets) == 1 and type(target := targets[0]) is ast.Name and type(node) is ast.Assign:
        return _Use({target.id}, loads, loads, has_effect)
    given: set[str] = set()
    all_loads = set(loads)
    for one in targets:
        read, stored, may_act = _names_and_effect(one)
        given |= read | stored
        all_loads |= read
        has_effect = has_effect or may_act
    if isinstance(node, ast.AnnAssign):
        read, _, may_act = _names_and_effect(node.annotation)
        all_loads |= read
        has_effect = has_effect or may_act
    return _Use(given, loads, all_loads, has_effect)


def _names_and_effect(node: ast.expr | None) -> tuple[set[str], set[str], bool]:
    """Names that an expression reads, other names in it, and True if it has an effect."""
    read, others, has_effect = set[str](), set[str](), False
    stack: list[Any] = [node]
    while stack:
        one = stack.pop()
        kind = type(one)
        if one is None:  # no value, or a key of `{**other}`
            continue
        if kind is ast.Name:
            (read if type(one.ctx) is ast.Load else others).add(one.id)
            continue
        if kind is ast.Call and not has_effect:
            has_effect = dotted(one.func).rpartition(".")[2].startswith(EFFECTS)
        for name in CHILDREN[kind]:
            value = getattr(one, name, None)
            if type(value) is list:
                stack += value
            elif value is not None:
                stack.append(value)
    return read, others, has_effect


def _loads(node: ast.AST) -> set[str]:
    return {
        one.id for one in walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
    }
