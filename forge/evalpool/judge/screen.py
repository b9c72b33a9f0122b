"""Reads a candidate's source without running it: the only evidence that a candidate cannot touch.

Called by the judge before anything is forked (about a millisecond). Refuses what a kernel does not
need and a cheat does: other imports, private and double-underscore attributes, computed attribute
access, dynamic code, files, compiled or registered torch. `try`, `pass`, helper classes and plain
Python are fine. Not covered: what a permitted call does; that is the sandbox's part.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

from forge.evalpool.judge.words import at_line

MAX_CODE_BYTES = 64_000
ALLOWED_IMPORTS = (
    *("torch", "triton", "math", "typing", "dataclasses", "functools", "itertools", "numpy"),
    "__future__",
)
ALLOWED_DUNDERS = ("__init__", "__call__", "__name__", "__class__")
FORBIDDEN_NAMES = {
    *("eval", "exec", "compile", "open", "__import__", "globals", "locals", "vars", "input"),
    *("breakpoint", "memoryview", "exit", "quit", "help"),
}
FORBIDDEN_IN = {
    "torch": {
        *("ops", "compile", "jit", "utils", "library", "multiprocessing", "distributed", "hub"),
        *("package", "load", "save", "from_file", "fx", "export", "overrides", "classes"),
        *("futures", "monitor", "profiler", "testing", "onnx", "from_numpy", "func"),
        *("UntypedStorage", "use_deterministic_algorithms", "set_default_dtype"),
    },
    "triton": {
        *("runtime", "compiler", "tools", "backends", "testing", "knobs", "experimental"),
        "profiler",
    },
}
"""Names below a module that a kernel has no use for."""
FORBIDDEN_ATTRIBUTES = {
    *("numpy", "tofile", "fromfile", "memmap", "ctypeslib", "ctypes", "untyped_storage", "storage"),
    *("gi_frame", "f_globals", "f_back", "tb_frame", "mro"),
}
"""Whatever they are read from. `.numpy()` would take a tensor's work out of torch's sight."""
COMPUTED = ("getattr", "setattr", "delattr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """Whether a source may be run. `reason` is `ok` or a stable code."""

    reason: str
    detail: str = ""

    @property
    def is_ok(self) -> bool:
        return self.reason == "ok"

    @property
    def is_compile_error(self) -> bool:
        return self.reason == "syntax_error"


class _Found(Exception):
    def __init__(self, reason: str, node: ast.AST, words: str) -> None:
        super().__init__(words)
        self.reason = reason
        self.line = getattr(node, "lineno", None)


def screen(code: str, *, entry_point: str) -> Screening:
    """Checks one source. `entry_point` is the class it must define. Never raises."""
    if len(code.encode(errors="replace")) > MAX_CODE_BYTES:
        return Screening(
            reason="too_long", detail=f"the source is longer than {MAX_CODE_BYTES} bytes"
        )
    try:
        tree = _parse(code)
        _check_definitions(tree, entry_point)
        for node in ast.walk(tree):
            _check(node)
    except SyntaxError as error:
        words = f"{type(error).__name__}: {error.msg}"
        return Screening(reason="syntax_error", detail=at_line(code, error.lineno, words))
    except (ValueError, RecursionError, MemoryError) as error:
        return Screening(
            reason="syntax_error", detail=f"the source cannot be parsed: {type(error).__name__}"
        )
    except _Found as found:
        return Screening(reason=found.reason, detail=at_line(code, found.line, str(found)))
    return Screening(reason="ok")


def _parse(code: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(code)
        compile(tree, "candidate.py", "exec")  # also finds `return` outside a function and the like
    return tree


def _check_definitions(tree: ast.Module, entry_point: str) -> None:
    if not any(isinstance(node, ast.ClassDef) and node.name == entry_point for node in tree.body):
        raise _Found("no_entry_point", tree, f"the answer does not define class {entry_point}")
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    if not any("jit" in ast.unparse(mark) for node in functions for mark in node.decorator_list):
        raise _Found("no_kernel", tree, "the answer has no @triton.jit kernel")


def _check(node: ast.AST) -> None:
    match node:
        case ast.Import():
            for alias in node.names:
                _check_module(alias.name, node)
        case ast.ImportFrom():
            _check_module(node.module or ".", node)
            for alias in node.names:
                _check_module(f"{node.module}.{alias.name}", node)
        case ast.Attribute():
            _check_attribute(node)
        case ast.Name():
            if node.id in FORBIDDEN_NAMES or (
                _is_dunder(node.id) and node.id not in ALLOWED_DUNDERS
            ):
                raise _Found("forbidden_name", node, f"{node.id} may not be used")
        case ast.Call(func=ast.Name(id=name)) if name in COMPUTED:
            _check_computed(node, name)
        case _:
            return


def _check_module(name: str, node: ast.AST) -> None:
    parts = name.split(".")
    if parts[0] not in ALLOWED_IMPORTS:
        allowed = ", ".join(ALLOWED_IMPORTS[:-1])
        raise _Found("forbidden_import", node, f"only {allowed} may be imported")
    forbidden = FORBIDDEN_IN.get(parts[0], set())
    bad = next((part for part in parts[1:] if part in forbidden or part.startswith("_")), None)
    if bad is not None:
        raise _Found("forbidden_import", node, f"{parts[0]}.{bad} may not be used")


def _check_attribute(node: ast.Attribute) -> None:
    name = node.attr
    if name in FORBIDDEN_ATTRIBUTES or (_is_dunder(name) and name not in ALLOWED_DUNDERS):
        raise _Found("forbidden_attribute", node, f".{name} may not be used")
    base = node.value
    if isinstance(base, ast.Name):
        if name in FORBIDDEN_IN.get(base.id, set()):
            raise _Found("forbidden_attribute", node, f"{base.id}.{name} may not be used")
        if base.id in ("self", "cls"):
            return
    if name.startswith("_") and name not in ALLOWED_DUNDERS:
        raise _Found("forbidden_attribute", node, f"private attribute .{name} may not be used")


def _check_computed(node: ast.Call, name: str) -> None:
    attribute = node.args[1] if len(node.args) > 1 else None
    if not isinstance(attribute, ast.Constant) or not isinstance(attribute.value, str):
        raise _Found("forbidden_call", node, f"{name} needs a constant name")
    if attribute.value.startswith("_") or attribute.value in FORBIDDEN_ATTRIBUTES:
        raise _Found("forbidden_call", node, f"{name} of {attribute.value} may not be used")


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and len(name) > 4
