"""Steps of a forward (allocations, operations of torch in place of Inductor's external kernels,
launches), and their tensors: memory, and views of it, written as torch's own operations.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from forge.data.inductor.expressions import polynomial, product, summed
from forge.data.inductor.source import NotRewritten, RewriteReason, dotted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


Sizes = tuple[ast.expr, ...]


@dataclass(eq=False, slots=True, kw_only=True)
class Root:
    """Memory: an input, a parameter, a buffer, or the result of an operation."""

    expr: ast.expr
    """The name, or chain of attributes, under which forward knows it."""
    size: Sizes | None = None
    """None until an assertion gives it."""
    stride: Sizes | None = None
    dtype: ast.expr | None = None
    is_input: bool = False
    """True if it outlasts the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A tensor over the memory of a root."""

    root: Root
    size: Sizes | None = None
    """None: that of the root, and so is the stride."""
    stride: Sizes | None = None
    offset: ast.expr | None = None
    """None: where the root begins."""

    def starts_at_root(self) -> bool:
        """True if a pointer to it is one to its root."""
        return self.offset is None

    def write(self) -> ast.expr:
        """The tensor as an expression."""
        root, base = self.root, copy.deepcopy(self.root.expr)
        if self.size is None or self.stride is None:
            return base
        if self.offset is None and root.size is not None and root.stride is not None:
            if same(self.size, root.size) and same(self.stride, root.stride):
                return base
            if _is_reshaped(self.size, self.stride, root.size, root.stride):
                return _method(base, "view", _unpacked(self.size))
            if order := _permutation(self.size, self.stride, root.size, root.stride):
                if order == [1, 0]:
                    return _method(base, "t", [])
                return _method(base, "permute", [ast.Constant(axis) for axis in order])
        given = [base, as_tuple(self.size), as_tuple(self.stride)]
        if self.offset is not None:
            given.append(self._storage_offset())
        return ast.Call(
            func=ast.parse("torch.as_strided", mode="eval").body, args=given, keywords=[]
        )

    def _storage_offset(self) -> ast.expr:
        """The offset from the beginning of the storage, which an input may not start at."""
        assert self.offset is not None
        if not self.root.is_input:
            return self.offset
        start = _method(copy.deepcopy(self.root.expr), "storage_offset", [])
        return ast.BinOp(left=start, op=ast.Add(), right=self.offset)


def same(left: Sequence[ast.expr], right: Sequence[ast.expr]) -> bool:
    """True if two sizes are equal, whatever the lengths are."""
    return [polynomial(one) for one in left] == [polynomial(one) for one in right]


def as_tuple(sizes: Sequence[ast.expr]) -> ast.Tuple:
    """Sizes as an expression."""
    return ast.Tuple(elts=[copy.deepcopy(one) for one in sizes], ctx=ast.Load())


def is_contiguous(size: Sequence[ast.expr] | None, stride: Sequence[ast.expr] | None) -> bool:
    """True for sizes and strides that leave no gap, in order, whatever the lengths are."""
    if size is None or stride is None or len(size) != len(stride):
        return False
    expected = product([])
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if polynomial(length) != ONE and polynomial(step) != expected:
            return False
        expected = product([length, summed(expected)])
    return True


ONE = polynomial(ast.Constant(1))


def _is_reshaped(size: Sizes, stride: Sizes, of_size: Sizes, of_stride: Sizes) -> bool:
    """True if one contiguous tensor has the elements of another."""
    is_whole = product(size) == product(of_size)
    return is_whole and is_contiguous(size, stride) and is_contiguous(of_size, of_stride)


def _permutation(size: Sizes, stride: Sizes, of_size: Sizes, of_stride: Sizes) -> list[int] | None:
    """Axes of another tensor in the order of this one; None if they do not match one by one."""
    theirs = [(polynomial(n), polynomial(k)) for n, k in zip(of_size, of_stride, strict=False)]
    ours = [(polynomial(n), polynomial(k)) for n, k in zip(size, stride, strict=False)]
    if len(ours) != len(theirs) or len(size) != len(stride):
        return None
    order: list[int] = []
    for pair in ours:
        axis = next((a for a, one in enumerate(theirs) if one == pair and a not in order), None)
        if axis is None:
            return None
        order.append(axis)
    return order


def _unpacked(size: Sizes) -> list[ast.expr]:
    return [copy.deepcopy(one) for one in size]


def _method(owner: ast.expr, name: str, given: list[ast.expr]) -> ast.Call:
    return ast.Call(
        func=ast.Attribute(value=owner, attr=name, ctx=ast.Load()), args=given, keywords=[]
    )


Value = View | ast.expr
"""An argument: a tensor, or a number."""


@dataclass(eq=False, slots=True, kw_only=True)
class Allocate:
    """A buffer begins."""

    root: Root


@dataclass(eq=False, slots=True, kw_only=True)
class Number:
    """A size gets a name."""

    name: str
    value: ast.expr


@dataclass(eq=False, slots=True, kw_only=True)
class Compute:
    """An operation of torch."""

    call: ast.expr
    """The operation; names like `0` in it stand for its tensors."""
    tensors: list[View]
    result: Root


@dataclass(eq=False, slots=True, kw_only=True)
class Launch:
    """A kernel is launched."""

    kernel: str
    arguments: dict[str, Value]
    """By parameter."""
    sizes: dict[str, int | ast.expr]
    """By constexpr."""
    grid: list[ast.expr]

    def keep(self, names: Collection[str]) -> None:
        """Passes these parameters only."""
        self.arguments = {k: v for k, v in self.arguments.items() if k in names}
        self.sizes = {k: v for k, v in self.sizes.items() if k in names}

    def roots(self, beginnings: tuple[str, ...]) -> Iterator[Root]:
        """The memory behind the parameters whose names begin so."""
        for name, value in self.arguments.items():
            if isinstance(value, View) and name.startswith(beginnings):
                yield value.root


Step = Allocate | Compute | Launch | Number


def needed(steps: list[Step], outputs: list[View]) -> list[Step]:
    """The steps that reach an output."""
    live = {one.root for one in outputs}
    kept: list[Step] = []
    for step in reversed(steps):
        match step:
            case Allocate(root=made) | Compute(result=made):
                is_needed = made in live
            case Launch():
                is_needed = any(root in live for root in step.roots(WRITTEN))
            case Number():
                is_needed = True
        if is_needed:
            kept.append(step)
            if isinstance(step, Compute):
                live.update(one.root for one in step.tensors)
            elif isinstance(step, Launch):
                live.update(step.roots(("",)))
    return kept[::-1]


WRITTEN = ("out_ptr", "in_out_ptr")
"""Beginnings of the names of parameters that Inductor's kernels write to."""
DRAWS = ("rand", "seed", "bernoulli", "normal", "dropout")
"""Parts of the names of operations that draw random numbers."""


def unknown(node: ast.AST) -> NoReturn:
    """Refuses a statement."""
    try:
        text = ast.unparse(node)
    except (ValueError, AttributeError, RecursionError):
        text = type(node).__name__
    raise NotRewritten(RewriteReason.UNKNOWN_STATEMENT, text.splitlines()[0][:100] if text else "")


def counterpart(made: ast.Call) -> ast.Call:
    """An operation that no kernel does, as torch has it. Raises NotRewritten."""
    name = dotted(made.func)
    if any(part in name for part in DRAWS):
        raise NotRewritten(RewriteReason.RANDOM, name)
    if not name.startswith("torch.ops.aten."):
        raise NotRewritten(RewriteReason.UNKNOWN_OPERATION, name)
    return made
