"""Finds sizes of tensors that stand as numbers in an answer, where expressions should stand."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from forge.data.inductor.source import dotted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

SMALL = 16
"""Largest number that is taken for no size: kernels of convolutions, axes, factors. A grid and the
shape of a result have no such numbers."""
BLOCKS = ("BLOCK", "num_warps", "num_stages", "GROUP")
"""Beginnings of names of keywords that are no sizes of tensors."""


def size_literals(code: str, sizes: Collection[int]) -> list[str]:
    """Numbers above `SMALL` in kernels and in `forward` that equal a size, each with its line.

    Blocks of a launch are left out: keywords like `BLOCK_M=64`, and the block in `triton.cdiv`.
    """
    lines = code.splitlines()
    tree = ast.parse(code)
    entries = [node for one in tree.body for node in getattr(one, "body", []) if _is_class(one)]
    return [
        f"{number.value}: {lines[number.lineno - 1].strip()[:80]}"
        for node in [*tree.body, *entries]
        if isinstance(node, ast.FunctionDef) and node.name != "__init__"
        for number in _numbers(node)
        if number.value in sizes
    ]


def _is_class(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef)


def _numbers(node: ast.AST) -> Iterator[ast.Constant]:
    match node:
        case ast.Constant(value=value):
            if type(value) is int and value > SMALL:
                yield node
        case ast.keyword(arg=str(name)) if any(one in name for one in BLOCKS):
            pass
        case ast.Call(args=[first, *_]) if dotted(node.func) == "triton.cdiv":
            yield from _numbers(first)
        case (
            ast.Call(func=ast.Subscript(slice=ast.Tuple(elts=direct)))
            | ast.Call(func=ast.Attribute(attr="empty"), args=[ast.Tuple(elts=direct), *_])
        ):
            small = [one for one in direct if isinstance(one, ast.Constant)]
            yield from (one for one in small if type(one.value) is int and 1 < one.value <= SMALL)
            yield from (found for child in ast.iter_child_nodes(node) for found in _numbers(child))
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _numbers(child)
