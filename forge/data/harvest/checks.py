"""Refuses a problem by its text: imports that no sandbox has, files, code from text.

The sandbox stops all of this, too; a text names it without a child, and a file written in a scratch
folder, which a sandbox allows, is refused here alone.
"""

from __future__ import annotations

import ast

from forge.data.answers import parse
from forge.data.harvest.closure import MAX_CHARS, TOO_DEEP, Import, is_allowed

FILES = frozenset({"open", "input"})
CODE = frozenset({"exec", "eval", "compile", "__import__", "breakpoint"})
METHODS = frozenset({"tofile", "fromfile", "savetxt", "loadtxt", "savez", "memmap", "from_file"})
OF_FILES = frozenset({
    f"{owner}.{name}" for owner in ("torch", "np", "numpy") for name in ("save", "load")
})  # fmt: skip


def fault_of(text: str) -> tuple[str, str] | None:
    """Reason and detail against a problem's text; None for one that may be run."""
    if len(text) > MAX_CHARS:
        return f"more than {MAX_CHARS} characters", f"{len(text)}"
    tree = parse(text)
    if tree is None:
        return "no Python", ""
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    if missing := [one for one in ("Model", "get_inputs", "get_init_inputs") if one not in names]:
        return f"no {missing[0]}", ""
    try:
        ast.unparse(tree)  # as later steps do with parts of it
        for node in ast.walk(tree):
            if (found := _fault(node)) is not None:
                return found, f"line {getattr(node, 'lineno', 0)}"
    except RecursionError:
        return TOO_DEEP, ""
    return None


def _fault(node: ast.AST) -> str | None:
    match node:
        case ast.Import(names=names):
            reasons = [is_allowed(Import(one.name, "")) for one in names]
            return next((one for one in reasons if one), None)
        case ast.ImportFrom(module=module, names=names, level=level):
            if level:
                return "imports its own package"
            reasons = [is_allowed(Import(module or "", one.name)) for one in names]
            return next((one for one in reasons if one), None)
        case ast.Call(func=ast.Name(id=name)) if name in FILES:
            return "reads or writes files"
        case ast.Call(func=ast.Name(id=name)) if name in CODE:
            return "runs code from text"
        case ast.Attribute(attr=name) if name in METHODS or ast.unparse(node) in OF_FILES:
            return "reads or writes files"
        case _:
            return None
