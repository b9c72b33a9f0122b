# pyright: strict
"""Decides by its source alone whether a reference leaves its process as it was.

Called by `oracles.py`, which has such processes draw for other problems too. References are the
user's own code, which means no harm: this finds what a later problem would notice. To doubt a
reference wrongly costs time alone. Not covered: a method called with a class of torch as its
`self`.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from forge.records.syntax import syntax_tree

if TYPE_CHECKING:
    from forge.records.problem import ReferenceModule

IMPORTS = frozenset(
    {
        *("torch", "math", "typing", "collections", "dataclasses", "enum", "functools"),
        *("itertools", "numbers", "einops", "numpy", "__future__"),
    }
)
"""Packages whose import changes nothing that another problem could notice."""
SWITCHES = re.compile(
    r"\b(set_\w+|register_(?!buffer)\w+|(activate|restore|clear|autocast)_\w+|init_num_threads"
    r"|backends|cuda|autograd|amp|triton|compile|use_\w+|library|seterr\w*|environ)\b"
)
"""Names of torch's and numpy's switches, devices and hooks."""
DYNAMIC = frozenset(
    {
        *("eval", "exec", "compile", "open", "__import__", "globals", "locals", "vars"),
        *("__builtins__", "input", "breakpoint", "exit", "quit"),
    }
)
"""Names with which code could do anything."""
ACCESSORS = frozenset({"getattr", "setattr", "delattr"})
"""Names that are looked at where they are called: under another name they would not be."""


def is_contained(problem: ReferenceModule) -> bool:
    """True if the reference does nothing that outlives it: it imports `IMPORTS` alone, names no
    switch of torch, and changes no attributes but those of `self`."""
    try:
        tree = syntax_tree(problem.source)
        text = ast.unparse(tree)  # names and strings as Python understands them, however written
    except (SyntaxError, ValueError, RecursionError):
        return False
    nodes = list(ast.walk(tree))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    is_passed_on = any(
        isinstance(node, ast.Name) and node.id in ACCESSORS and id(node) not in called
        for node in nodes
    )
    return not (SWITCHES.search(text) or is_passed_on or any(map(_reaches_out, nodes)))


def _reaches_out(node: ast.AST) -> bool:
    """True if a node may import more, change a class of torch, or stay in a context."""
    match node:
        case ast.Import(names=names):
            return any(one.name.split(".")[0] not in IMPORTS for one in names)
        case ast.ImportFrom(module=module, level=level):
            return level > 0 or (module or "").split(".")[0] not in IMPORTS
        case ast.Global() | ast.Nonlocal() | ast.AsyncFunctionDef():
            return True
        case ast.Name(id=name) if name in DYNAMIC:
            return True
        case ast.Name(id="self", ctx=ast.Store()):
            return True
        case ast.Attribute(value=owner, attr=name):
            is_hidden = name.startswith("_") and name not in ("__init__", "__name__")
            is_read = isinstance(node.ctx, ast.Load)
            return not _is_self(owner) and (is_hidden or not is_read)
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=args):
            return not args or not _is_self(args[0])
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, name, *_]):
            named = name.value if isinstance(name, ast.Constant) else None
            is_plain = isinstance(named, str) and not named.startswith("_")
            return not _is_self(owner) and not is_plain
        case ast.With():
            return any(isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(node))
        case _:
            return False


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
