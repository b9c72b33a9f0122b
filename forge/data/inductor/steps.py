"""Steps of a forward: allocations, operations of torch, launches."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.data.inductor.tensors import Root, View

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from forge.data.inductor.kernel.body import Access

Value = View | ast.expr
"""An argument: a tensor, or a number."""


@dataclass(eq=False, slots=True, kw_only=True)
class Allocate:
    """A buffer begins."""

    root: Root


@dataclass(eq=False, slots=True, kw_only=True)
class Compute:
    """An operation of torch."""

    call: ast.expr
    """The operation; names like `0` in it stand for its tensors."""
    tensors: list[View]
    result: Root | None = None
    """None if it writes to its tensors only."""
    written: tuple[Root, ...] = ()


@dataclass(eq=False, slots=True, kw_only=True)
class Launch:
    """A kernel is launched."""

    kernel: str
    arguments: dict[str, Value]
    """By parameter."""
    sizes: dict[str, int]
    """By constexpr."""
    grid: list[ast.expr]
    num_warps: int
    num_stages: int | None = None

    def keep(self, names: Collection[str]) -> None:
        """Passes these parameters only."""
        self.arguments = {k: v for k, v in self.arguments.items() if k in names}
        self.sizes = {k: v for k, v in self.sizes.items() if k in names}

    def roots(self, names: frozenset[str]) -> Iterator[Root]:
        """The memory behind some parameters."""
        for name in names:
            if isinstance(value := self.arguments.get(name), View):
                yield value.root


Step = Allocate | Compute | Launch


def unread_stores(
    steps: list[Step], accesses: dict[str, Access], outputs: list[View]
) -> tuple[list[Step], dict[str, frozenset[str]]]:
    """The steps that reach an output, and by kernel the parameters to which it stores in vain."""
    live = {one.root for one in outputs}
    kept: list[Step] = []
    unread: dict[str, frozenset[str]] = {}
    for step in reversed(steps):
        match step:
            case Allocate():
                if step.root in live:
                    kept.append(step)
            case Compute():
                made = {*step.written, *([step.result] if step.result else [])}
                if not made or any(one in live or one.is_input for one in made):
                    kept.append(step)
                    live.update(one.root for one in step.tensors)
            case Launch():
                access = accesses[step.kernel]
                stored = [*step.roots(access.written)]
                if any(one in live or one.is_input for one in stored):
                    vain = _stores_in_vain(step, access, live)
                    unread[step.kernel] = unread.get(step.kernel, vain) & vain
                    kept.append(step)
                    live.update(step.roots(access.read | (access.written - vain)))
    return _with_allocations(steps, kept), unread


def _with_allocations(steps: list[Step], kept: list[Step]) -> list[Step]:
    """Steps in their order, with the buffers of all arguments that are still passed."""
    passed: set[Root] = set()
    for step in kept:
        match step:
            case Launch():
                passed.update(v.root for v in step.arguments.values() if isinstance(v, View))
            case Compute():
                passed.update(one.root for one in step.tensors)
            case Allocate():
                passed.add(step.root)
    chosen = set(kept)
    return [
        one for one in steps if one in chosen or (isinstance(one, Allocate) and one.root in passed)
    ]


def _stores_in_vain(step: Launch, access: Access, live: set[Root]) -> frozenset[str]:
    """Parameters that a kernel only stores to, in memory that nobody reads afterwards."""
    read = {*step.roots(access.read)}
    vain = set[str]()
    for name in access.written - access.read:
        value = step.arguments.get(name)
        if not isinstance(value, View) or value.root.is_input:
            continue
        if value.root not in live and value.root not in read:
            vain.add(name)
    return frozenset(vain)
