"""Reads a candidate's source without running it: the only evidence that a candidate cannot touch.

Called by the judge before anything is forked (about a millisecond). Refuses what a kernel does not
need and a cheat does: other imports, private and double-underscore attributes, computed attribute
access, dynamic code, files, compiled or registered torch. `try`, `pass`, helper classes and plain
Python are fine. A module is seen through the name it was imported as, and stands only in front of a
dot, so that no other name can come to mean it. Not covered: what a permitted call does; that is the
sandbox's part.
"""

from __future__ import annotations

import ast
import symtable
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
    "numpy": {
        *("array", "asarray", "asanyarray", "ascontiguousarray", "frombuffer", "from_dlpack"),
        *("load", "save", "lib", "f2py", "testing"),
    },
    "typing": {"get_type_hints"},
}
"""Names below a module that a kernel has no use for."""
FORBIDDEN_ATTRIBUTES = {
    *("numpy", "tofile", "fromfile", "memmap", "ctypeslib", "untyped_storage", "storage"),
    *("gi_frame", "cr_frame", "ag_frame", "f_globals", "f_builtins", "f_back", "tb_frame", "mro"),
}
"""Whatever they are read from. `.numpy()` would take a tensor's work out of torch's sight."""
MODULES = {
    *("builtins", "os", "sys", "importlib", "threading", "subprocess", "multiprocessing", "ctypes"),
    *("inspect", "io", "pickle", "gc", "socket", "shutil", "tempfile", "pathlib", "glob", "types"),
    *("linecache", "traceback", "warnings", "weakref", "operator", "functools", "contextlib"),
    *("platform", "textwrap", "logging", "torch", "triton", "np"),
}
"""What modules import themselves: `torch.sys`, `F.importlib`. Fine on `self`."""
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
        names = _Names.of(code, tree)
        for node in ast.walk(tree):
            _check(node, names)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """What names mean in one source."""

    imported: dict[str, str]
    """To dotted paths: `F` to `torch.nn.functional`."""
    modules: set[str]
    """Those of them that are modules for certain."""
    builtin: set[str]
    """Forbidden names that may mean the builtin; a parameter called `input` does not."""
    placed: set[int]
    """Nodes that are a name in front of a dot, called, or looked into by a checked getattr."""

    @classmethod
    def of(cls, code: str, tree: ast.Module) -> _Names:
        imported: dict[str, str] = {}
        modules: set[str] = set()
        placed: set[int] = set()
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    for one in node.names:
                        name = one.asname or one.name.split(".")[0]
                        imported[name] = one.name if one.asname else name
                        modules.add(name)
                case ast.ImportFrom():
                    for one in node.names:
                        imported[one.asname or one.name] = f"{node.module}.{one.name}"
                case ast.Attribute():
                    placed.add(id(node.value))
                case ast.Call(func=ast.Name(id=name)) if name in (*COMPUTED, "hasattr"):
                    placed |= {id(node.func), *(id(argument) for argument in node.args[:1])}
        builtin = _reaching_builtins(symtable.symtable(code, "candidate.py", "exec"))
        return cls(imported=imported, modules=modules, builtin=builtin, placed=placed)

    def path(self, node: ast.AST) -> str | None:
        """What a chain of attributes of something imported is called; None for other nodes."""
        match node:
            case ast.Name(id=name):
                return self.imported.get(name)
            case ast.Attribute(value=base, attr=name):
                path = self.path(base)
                return f"{path}.{name}" if path else None
        return None


def _reaching_builtins(table: symtable.SymbolTable) -> set[str]:
    """Forbidden names that are not local where they are used. Class bodies see builtins too."""
    is_function = table.get_type() == "function"
    own = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or not is_function)
    }
    return (own & FORBIDDEN_NAMES).union(*map(_reaching_builtins, table.get_children()))


def _check(node: ast.AST, names: _Names) -> None:
    match node:
        case ast.Import():
            for alias in node.names:
                _check_module(alias.name, node)
        case ast.ImportFrom():
            _check_module(node.module or ".", node)
            for alias in node.names:
                _check_module(f"{node.module}.{alias.name}", node)
        case ast.Attribute():
            _check_attribute(node, node.value, node.attr, names)
            path = names.path(node)
            is_set = not isinstance(node.ctx, ast.Load)
            if path and is_set and not path.startswith("torch.backends."):
                raise _Found("forbidden_attribute", node, f"{path} may not be changed")
        case ast.MatchClass():
            for name in node.kwd_attrs:
                _check_attribute(node, node.cls, name, names)
        case ast.Name():
            _check_name(node, names)
        case ast.Call(func=ast.Name(id=name)) if name in COMPUTED:
            _check_computed(node, name, names)
        case _:
            return


def _check_name(node: ast.Name, names: _Names) -> None:
    name = node.id
    if name in names.builtin or (_is_dunder(name) and name not in ALLOWED_DUNDERS):
        raise _Found("forbidden_name", node, f"{name} may not be used")
    if id(node) in names.placed or not isinstance(node.ctx, ast.Load):
        return
    if name in COMPUTED:
        raise _Found("forbidden_name", node, f"{name} may only be called")
    if name in names.modules:
        raise _Found("forbidden_name", node, f"{name} may only be used as {name}.something")


def _check_module(name: str, node: ast.AST) -> None:
    parts = name.split(".")
    if parts[0] not in ALLOWED_IMPORTS:
        allowed = ", ".join(ALLOWED_IMPORTS[:-1])
        raise _Found("forbidden_import", node, f"only {allowed} may be imported")
    if (bad := _forbidden_part(name)) is not None:
        raise _Found("forbidden_import", node, f"{parts[0]}.{bad} may not be used")


def _forbidden_part(path: str) -> str | None:
    """The first part of a module's path that is not for candidates."""
    first, *parts = path.split(".")
    forbidden = FORBIDDEN_IN.get(first, set()) | MODULES | {"*"}
    return next((part for part in parts if part in forbidden or part.startswith("_")), None)


def _check_attribute(node: ast.AST, base: ast.AST, name: str, names: _Names) -> None:
    if name in FORBIDDEN_ATTRIBUTES or (_is_dunder(name) and name not in ALLOWED_DUNDERS):
        raise _Found("forbidden_attribute", node, f".{name} may not be used")
    path = names.path(base)
    if path and (bad := _forbidden_part(f"{path}.{name}")) and not _is_dunder(name):
        raise _Found("forbidden_attribute", node, f"{path.split('.')[0]}.{bad} may not be used")
    if isinstance(base, ast.Name) and base.id in ("self", "cls"):
        return
    if name in MODULES:
        raise _Found("forbidden_attribute", node, f".{name} may not be used")
    if name.startswith("_") and name not in ALLOWED_DUNDERS:
        raise _Found("forbidden_attribute", node, f"private attribute .{name} may not be used")


def _check_computed(node: ast.Call, name: str, names: _Names) -> None:
    attribute = node.args[1] if len(node.args) > 1 else None
    if not isinstance(attribute, ast.Constant) or not isinstance(attribute.value, str):
        raise _Found("forbidden_call", node, f"{name} needs a constant name")
    try:
        _check_attribute(node, node.args[0], attribute.value, names)
    except _Found as found:
        words = f"{name} of {attribute.value} may not be used"
        raise _Found("forbidden_call", node, words) from found
    if name != "getattr" and names.path(node.args[0]):
        raise _Found("forbidden_call", node, "a module may not be changed")


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and len(name) > 4
