"""Tensors of `call`: memory, and views of it, written as torch's own operations."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.data.inductor.source import copied

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    is_used: bool = False
    """True once an operation has read or written it."""


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
        root, base = self.root, copied(self.root.expr)
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
        start = _method(copied(self.root.expr), "storage_offset", [])
        return ast.BinOp(left=start, op=ast.Add(), right=self.offset)


def same(left: Sequence[ast.expr], right: Sequence[ast.expr]) -> bool:
    """True if two sizes are written in the same way."""
    return [ast.dump(one) for one in left] == [ast.dump(one) for one in right]


def as_tuple(sizes: Sequence[ast.expr]) -> ast.Tuple:
    """Sizes as an expression."""
    return ast.Tuple(elts=[copied(one) for one in sizes], ctx=ast.Load())


def numbers(sizes: Sequence[ast.expr] | None) -> list[int] | None:
    """Sizes as numbers; None if one of them is none."""
    found: list[int] = []
    for one in sizes or ():
        match one:
            case ast.Constant(value=int(value)):
                found.append(value)
            case _:
                return None
    return None if sizes is None else found


def is_contiguous(size: Sequence[ast.expr] | None, stride: Sequence[ast.expr] | None) -> bool:
    """True for sizes and strides that are numbers and leave no gap, in order."""
    sizes, strides = numbers(size), numbers(stride)
    if sizes is None or strides is None or len(sizes) != len(strides):
        return False
    expected = 1
    for length, step in zip(reversed(sizes), reversed(strides), strict=True):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True


def num_elements(size: Sequence[ast.expr] | None) -> int | None:
    """Product of sizes; None if one is no number."""
    lengths = numbers(size)
    if lengths is None:
        return None
    total = 1
    for one in lengths:
        total *= one
    return total


def _is_reshaped(size: Sizes, stride: Sizes, of_size: Sizes, of_stride: Sizes) -> bool:
    """True if one contiguous tensor has the elements of another."""
    is_whole = num_elements(size) == num_elements(of_size)
    return is_whole and is_contiguous(size, stride) and is_contiguous(of_size, of_stride)


def _permutation(size: Sizes, stride: Sizes, of_size: Sizes, of_stride: Sizes) -> list[int] | None:
    """Axes of another tensor in the order of this one; None if they do not match one by one."""
    if None in (numbers(size), numbers(stride), numbers(of_size), numbers(of_stride)):
        return None
    theirs = list(zip(numbers(of_size) or [], numbers(of_stride) or [], strict=False))
    ours = list(zip(numbers(size) or [], numbers(stride) or [], strict=False))
    if sorted(ours) != sorted(theirs) or len(ours) != len(of_size):
        return None
    order: list[int] = []
    for pair in ours:
        order.append(next(a for a, one in enumerate(theirs) if one == pair and a not in order))
    return order


def _unpacked(size: Sizes) -> list[ast.expr]:
    return [copied(one) for one in size]


def _method(owner: ast.expr, name: str, given: list[ast.expr]) -> ast.Call:
    return ast.Call(
        func=ast.Attribute(value=owner, attr=name, ctx=ast.Load()), args=given, keywords=[]
    )
