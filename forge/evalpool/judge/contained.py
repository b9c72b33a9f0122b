"""Whether a reference leaves its process as it was, by its source alone.

Called by `oracles.py`, which lets such processes draw for other problems too. Third-party code that
means no harm: what a candidate may not say (`screen.py`), and what of the rest a later problem
would notice.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from forge.evalpool.judge.screen import screen

if TYPE_CHECKING:
    from forge.records.problem import ReferenceModule

SWITCHES = re.compile(
    r"\b(set_\w+|register_(?!buffer)\w+|(activate|restore|clear|autocast)_\w+|init_num_threads"
    r"|backends|cuda|autograd|amp|triton)\b"
)
"""What a candidate may name and a later problem would notice: torch's switches, devices, hooks."""


def is_contained(problem: ReferenceModule) -> bool:
    """Whether its reference does nothing that outlives it: it passes what is asked of candidates,
    names none of torch's switches, and changes no attributes but those of `self`. To doubt one
    wrongly costs time alone. Not covered: a method called with a class of torch's as its `self`."""
    source = problem.source
    if not screen(source, entry_point=problem.entry_point, needs_kernel=False).is_ok:
        return False
    try:
        tree = ast.parse(source)
        words = ast.unparse(tree)  # names and texts as Python understands them, however written
    except RecursionError:
        return False
    return not SWITCHES.search(words) and not any(map(_reaches_out, ast.walk(tree)))


def _reaches_out(node: ast.AST) -> bool:
    """Whether it may change a class of torch's under another name, or stay in a context."""
    match node:
        case ast.Attribute(value=owner, ctx=ast.Store() | ast.Del()):
            return not _is_self(owner)
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=args):
            return not args or not _is_self(args[0])
        case ast.Name(id="self", ctx=ast.Store()):
            return True
        case ast.With():
            return any(isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(node))
        case ast.AsyncFunctionDef():
            return True
    return False


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
