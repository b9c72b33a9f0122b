"""An answer's quality without running it: Python, with the entry point, that launches a kernel.

A heuristic for filtering rows, not a judgement: whether the kernel does the work is the judge's
question. Also understands what Inductor writes: kernels started by `.run`, and kernels as text.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

JIT = "jit"
KERNEL_TEXT = "triton.jit"
"""In the text of a kernel that Inductor compiles: `async_compile.triton("name", '''...''')`."""
MAX_DEPTH = 200
"""Maximum nesting of blocks that is searched for kernels."""


def parse(code: str) -> ast.Module | None:
    """The syntax tree; None for a text that is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a wrong escape in a string
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def find_fault(tree: ast.Module | None, *, answers_to: str) -> str | None:
    """The first reason against an answer; None for a good one."""
    if tree is None:
        return "no Python"
    defined = {node.name for node in tree.body if isinstance(node, _DEFINITIONS)}
    if not answers_to or answers_to not in defined:
        return "without the entry point"
    kernels, compiled = _kernels(tree)
    if not kernels:
        return "without a Triton kernel"
    if not _is_launched(tree, kernels, compiled):
        return "kernel never launched"
    return None


_DEFINITIONS = (ast.ClassDef, ast.FunctionDef)


def _kernels(tree: ast.Module) -> tuple[set[str], set[int]]:
    """Names of the kernels, and the ids of their definitions."""
    names: set[str] = set()
    nodes: set[int] = set()
    for node in _blocks(tree):
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
            names.add(node.name)
            nodes.add(id(node))
        elif isinstance(node, ast.Assign) and _is_kernel_text(node.value):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names, nodes


def _blocks(tree: ast.AST, depth: int = MAX_DEPTH) -> Iterator[ast.stmt]:
    """Statements, and those inside of them; expressions hold no definitions."""
    for name in ("body", "orelse", "finalbody"):
        for node in getattr(tree, name, ()):
            if isinstance(node, ast.stmt):
                yield node
                if depth:
                    yield from _blocks(node, depth - 1)


def _is_jit(node: ast.expr) -> bool:
    """`@jit`, `@triton.jit`, `@triton.jit(...)`."""
    if isinstance(node, ast.Call):
        node = node.func
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name == JIT


def _is_kernel_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and any(
        isinstance(argument, ast.Constant)
        and isinstance(argument.value, str)
        and KERNEL_TEXT in argument.value
        for argument in node.args
    )


def _is_launched(tree: ast.Module, kernels: set[str], compiled: set[int]) -> bool:
    """True if a kernel's name is used outside of kernels: `kernel[grid]`, `kernel.run`, or as an
    argument."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if id(node) in compiled:
            continue
        if isinstance(node, ast.Name) and node.id in kernels and isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Attribute) and node.attr in kernels:
            return True
        stack.extend(ast.iter_child_nodes(node))
    return False
