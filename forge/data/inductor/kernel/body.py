"""A kernel's body in Triton's own words: no aliases, no constants behind names, no unused values.

`plain` and `with_sizes_as_arguments` are applied once to each kernel, `without` again whenever the
launches show that nobody reads what it stores through a parameter. Each may change the statements
that it is given.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forge.data.inductor.kernel.inlining import Inlining
from forge.data.inductor.kernel.runtime_functions import translate
from forge.data.inductor.kernel.unused import sweep
from forge.data.inductor.source import dotted, is_call, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from forge.data.inductor.source import GeneratedKernel

MAX_ROUNDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Parameters through which a kernel reads and writes memory."""

    read: frozenset[str]
    written: frozenset[str]


def plain(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel without Inductor's functions; constexprs that its body fixes are parameters.

    Raises:
        NotRewritten: a function without a counterpart, or random numbers.
    """
    body = [_translated(node) for node in kernel.body]
    fixed: dict[str, int] = {}
    left = [node for node in body if not _is_fixed(node, fixed) and not _is_assertion(node)]
    _drop_no_masks(left)
    params = (*kernel.params, *(name for name in fixed if name not in kernel.params))
    constexprs = kernel.constexprs | fixed.keys()
    return replace(kernel, body=left, params=params, constexprs=constexprs, fixed=fixed)


def without(kernel: GeneratedKernel, unread: Set[str]) -> GeneratedKernel:
    """The kernel without stores to some parameters, and without what only those needed."""
    return _cleaned(replace(kernel, body=list(_kept(kernel.body, unread))))


def pruned(kernel: GeneratedKernel) -> GeneratedKernel:
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
    return _cleaned(replace(kernel, body=left))


def access_of(kernel: GeneratedKernel) -> Access:
    """Reads and writes of a kernel. A pointer outside `tl.load` and `tl.store` counts as both."""
    stores = [one for one in walk(*kernel.body) if is_call(one, "tl.store")]
    loads = [one for one in walk(*kernel.body) if is_call(one, "tl.load")]
    written = _first_names(stores, kernel)
    read = _first_names(loads, kernel)
    total = Counter(one.id for one in walk(*kernel.body) if isinstance(one, ast.Name))
    for name in kernel.arguments:
        if total[name] > written[name] + read[name]:
            written[name] += 1
            read[name] += 1
    return Access(read=frozenset(read), written=frozenset(written))


def _first_names(calls: list[ast.AST], kernel: GeneratedKernel) -> Counter[str]:
    """Uses of parameters in the first argument of some calls."""
    pointers = set(kernel.arguments)
    return Counter(
        one.id
        for call in calls
        if isinstance(call, ast.Call) and call.args
        for one in walk(call.args[0])
        if isinstance(one, ast.Name) and one.id in pointers
    )


def _translated(node: ast.stmt) -> ast.stmt:
    made = translate(node)
    assert isinstance(made, ast.stmt)
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


def _kept(body: list[ast.stmt], unread: Set[str]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.Expr) and _stores_to(node.value, unread):
            continue
        for part in ("body", "orelse"):
            if inner := getattr(node, part, None):
                setattr(node, part, list(_kept(inner, unread)))
        yield node


def _stores_to(node: ast.expr, unread: Set[str]) -> bool:
    if not (isinstance(node, ast.Call) and is_call(node, "tl.store") and node.args):
        return False
    return any(isinstance(one, ast.Name) and one.id in unread for one in walk(node.args[0]))


def _drop_no_masks(body: list[ast.stmt]) -> None:
    """Removes masks that are None, and slices that take everything."""
    for node in body:
        for one in walk(node):
            if isinstance(one, ast.Call) and dotted(one.func) in ("tl.load", "tl.store"):
                place = 1 if dotted(one.func) == "tl.load" else 2
                if len(one.args) == place + 1 and literal_none(one.args[place]):
                    one.args.pop()
            _shorten(one)


def literal_none(node: ast.expr) -> bool:
    """True for the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def _shorten(node: ast.AST) -> None:
    """`x[:]` below a node becomes `x`."""
    for name, value in ast.iter_fields(node):
        match value:
            case ast.Subscript(value=inner, slice=ast.Slice(lower=None, upper=None, step=None)):
                setattr(node, name, inner)
            case _:
                pass


def _cleaned(kernel: GeneratedKernel) -> GeneratedKernel:
    body = kernel.body
    for _ in range(MAX_ROUNDS):
        before = len(body)
        inlining = Inlining.of(body, kernel.params)
        body = [one for node in body if (one := inlining.visit(node)) is not None]
        body = sweep(body)
        if not inlining.known and len(body) == before:
            break
    return replace(kernel, body=body)
