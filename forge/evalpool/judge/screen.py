"""Reads a candidate's source without running it: the only evidence that a candidate cannot touch.

Called by the judge before anything is forked (about a millisecond). Refuses what a kernel does not
need and a cheat does: other imports, private and double-underscore attributes, computed attribute
access, dynamic code, special methods, files, compiled or registered torch. `try`, `pass`, helper
classes and plain Python are fine. A module is seen through the names it was given, and stands only
in front of a dot, so that no other name can come to mean it; so does each class that the judge's
side of a runner works with. Not covered: what a permitted call does; that is the sandbox's part.
`contained.py` asks the same of references, which need no kernel.
"""

from __future__ import annotations

import ast
import re
import symtable
import warnings
from dataclasses import dataclass
from functools import lru_cache

from forge.evalpool.judge.allowed import (
    ALLOWED_IMPORTS,
    CLASSES,
    FOREIGN,
    forbidden_part,
    is_module,
)
from forge.evalpool.judge.naming import COMPUTED, Names, is_kernel, reaching_builtins
from forge.evalpool.judge.words import at_line
from forge.records import Status

MAX_CODE_BYTES = 64_000
ALLOWED_DUNDERS = ("__init__", "__call__", "__name__", "__class__")
ALLOWED_NAMES = {
    *("__init__", "__call__", "__name__", "__all__", "__slots__", "__doc__", "__version__"),
    "__author__",
}
ALLOWED_METHODS = {
    *("__init__", "__call__", "__len__", "__getitem__", "__setitem__", "__iter__", "__next__"),
    *("__enter__", "__exit__", "__post_init__", "__bool__", "__repr__", "__str__"),
}
"""Others are called where nobody wrote a call: by torch, by the judge's side of the runner."""
FORBIDDEN_NAMES = {
    *("eval", "exec", "compile", "open", "__import__", "globals", "locals", "vars", "input"),
    *("breakpoint", "memoryview", "exit", "quit", "help"),
}
FORBIDDEN_ATTRIBUTES = {
    *("numpy", "tofile", "fromfile", "memmap", "ctypeslib", "untyped_storage", "storage"),
    *("tolist", "apply_", "map_", "map2_", "as_subclass", "share_memory_", "add_pre_run_hook"),
    *("gi_frame", "cr_frame", "ag_frame", "f_globals", "f_builtins", "f_back", "tb_frame", "mro"),
    *("gi_code", "f_locals", "f_code", "tb_next", "obj", "format_map"),
    *("get_capture_scope", "used_global_vals"),
}
"""Whatever they are read from. `.numpy()`, `.tolist()` and `.apply_()` would take a tensor's work
out of torch's sight; an error's `.obj` is what the attribute was missing from, a module too."""
MODULES = {
    *("builtins", "os", "sys", "importlib", "threading", "subprocess", "multiprocessing", "ctypes"),
    *("inspect", "io", "pickle", "gc", "socket", "shutil", "tempfile", "pathlib", "glob", "types"),
    *("linecache", "traceback", "warnings", "weakref", "operator", "functools", "contextlib"),
    *("platform", "textwrap", "logging", "torch", "triton", "np"),
}
"""What modules import themselves: `torch.sys`, `F.importlib`. Fine on `self`."""
INSIDE_KERNELS = {"rewrite", "rewriter", "rewritten_fn", "pre_run_hooks", "handle", "raw_src"}
"""What Triton makes kernels of and runs them with. Fine on `self`."""
HOOKED = {"copy_", "detach", "run", "fn", "warmup", "arg_names", "kwargs", "params", "src"}
"""What the runner calls. An object may have its own; nobody else's is replaced."""
PLACES = {
    "dataclasses.dataclass": "dataclass may only decorate a class",
    "dataclasses.field": "field may only give a value to a field of a dataclass",
    "functools.wraps": "wraps may only decorate a function that is no kernel",
    "typing.NamedTuple": "NamedTuple may only be the base of a class",
}
"""Where names may stand that run the names of fields as code, or set attributes by name."""
FORMATTED_DUNDER = re.compile(r"\{[^{}]*\.__\w")


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """Whether a source may be run. `reason` is `ok` or a stable code."""

    reason: str
    detail: str = ""

    @property
    def is_ok(self) -> bool:
        return self.reason == "ok"

    @property
    def status(self) -> Status:
        """Status of a source that may not be run."""
        return Status.COMPILE_ERROR if self.reason == "syntax_error" else Status.REJECTED


class _Found(Exception):
    def __init__(self, reason: str, node: ast.AST, words: str) -> None:
        super().__init__(words)
        self.reason = reason
        self.line = getattr(node, "lineno", None)


def screen(code: str, *, entry_point: str, needs_kernel: bool = True) -> Screening:
    """Checks one source. `entry_point` is the class or function it must define. Never raises."""
    if len(code.encode(errors="replace")) > MAX_CODE_BYTES:
        return Screening(
            reason="too_long", detail=f"the source is longer than {MAX_CODE_BYTES} bytes"
        )
    try:
        tree = _parse(code)
        _check_definitions(tree, entry_point, needs_kernel=needs_kernel)
        names = Names.of(tree)
        table = symtable.symtable(code, "candidate.py", "exec")
        builtin = reaching_builtins(table, among=FORBIDDEN_NAMES)
        for node in ast.walk(tree):
            _check(node, names, builtin)
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


def _check_definitions(tree: ast.Module, entry_point: str, *, needs_kernel: bool) -> None:
    kinds = (ast.ClassDef, ast.FunctionDef)
    if not any(isinstance(node, kinds) and node.name == entry_point for node in tree.body):
        raise _Found("no_entry_point", tree, f"the answer does not define class {entry_point}")
    if not needs_kernel:
        return
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    if not any("jit" in ast.unparse(mark) for node in functions for mark in node.decorator_list):
        raise _Found("no_kernel", tree, "the answer has no @triton.jit kernel")


def _check(node: ast.AST, names: Names, builtin: set[str]) -> None:
    match node:
        case ast.Import() | ast.ImportFrom():
            _check_import(node)
            if names.is_in_class_body(node):
                raise _Found("forbidden_import", node, "import at the top of the file")
        case ast.Attribute():
            _check_attribute(node, node.value, node.attr, names)
            _check_use(node, names)
            if not isinstance(node.ctx, ast.Load):
                _check_change(node, node.value, node.attr, names)
        case ast.MatchClass():
            for name in node.kwd_attrs:
                _check_attribute(node, node.cls, name, names)
        case ast.Name():
            _check_name(node, names, builtin)
        case ast.Call():
            _check_call(node, names)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            _check_definition(node)
        case ast.Constant(value="__builtins__"):
            raise _Found("forbidden_name", node, "__builtins__ may not be used")
        case ast.Constant(value=str(text)) if FORMATTED_DUNDER.search(text):
            raise _Found("forbidden_attribute", node, "a format may not read .__names__")
        case _:
            return


def _check_import(node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.Import):
        wanted = [one.name for one in node.names]
    else:
        wanted = [f"{node.module or '.'}.{one.name}" for one in node.names]
    for path in wanted:
        first = path.split(".")[0]
        if first not in ALLOWED_IMPORTS:
            allowed = ", ".join(ALLOWED_IMPORTS[:-1])
            raise _Found("forbidden_import", node, f"only {allowed} may be imported")
        if (bad := forbidden_part(path)) is not None:
            raise _Found("forbidden_import", node, f"{first}.{bad} may not be used")


def _check_name(node: ast.Name, names: Names, builtin: set[str]) -> None:
    """`builtin`: forbidden names that may mean the builtin; a parameter called `input` does not."""
    name = node.id
    if name in builtin or (_is_dunder(name) and name not in ALLOWED_NAMES):
        raise _Found("forbidden_name", node, f"{name} may not be used")
    if name == "__name__" and not isinstance(node.ctx, ast.Load):  # what is defined below bears it
        raise _Found("forbidden_name", node, f"{name} may not be changed")
    if name in COMPUTED and name in names.bound:
        raise _Found("forbidden_name", node, f"{name} may not be redefined")
    if not isinstance(node.ctx, ast.Load):
        return
    if name in FOREIGN and name not in names.bound:  # whatever put it there
        raise _Found("forbidden_name", node, f"{name} may not be used")
    parent = names.parents.get(id(node))
    is_called = isinstance(parent, ast.Call) and parent.func is node
    if name in COMPUTED and not is_called:
        raise _Found("forbidden_name", node, f"{name} may only be called")
    is_named = id(node) in names.naming or isinstance(parent, ast.Compare | ast.Subscript)
    if names.means_builtin(name, among={"type"}) and not is_named:
        raise _Found("forbidden_name", node, "type may only be called")
    _check_use(node, names)


def _check_use(node: ast.Name | ast.Attribute, names: Names) -> None:
    """A module only in front of a dot; a class that others work with only where it is named."""
    if not isinstance(node.ctx, ast.Load):
        return
    for path in names.paths(node):
        if path in PLACES and not _is_in_place(node, path, names):
            raise _Found("forbidden_name", node, PLACES[path])
    if names.is_followed(node):
        return
    for path in names.paths(node):
        words = ast.unparse(node)
        if is_module(path):
            raise _Found("forbidden_name", node, f"{words} may only be used as {words}.something")
        if path in CLASSES and id(node) not in names.naming:
            raise _Found("forbidden_name", node, f"the class {words} may not be passed on")


def _is_in_place(node: ast.AST, path: str, names: Names) -> bool:
    parent = names.parents.get(id(node))
    if path == "typing.NamedTuple":
        return isinstance(parent, ast.ClassDef) and node in parent.bases
    call = parent if isinstance(parent, ast.Call) and parent.func is node else None
    owner = names.parents.get(id(call or node))
    match path.split(".")[1], owner:
        case "dataclass", ast.ClassDef():
            return (call or node) in owner.decorator_list
        case "wraps", ast.FunctionDef():
            return call in owner.decorator_list and not is_kernel(owner)
        case "field", ast.AnnAssign(target=ast.Name(id=name), value=value) if value is call:
            made = names.parents.get(id(owner))
            return isinstance(made, ast.ClassDef) and _keeps_fields(made, name, names)
    return False


def _keeps_fields(made: ast.ClassDef, name: str, names: Names) -> bool:
    """Whether nothing sees a field's description before `dataclass` has put it away."""
    mark = made.decorator_list[-1] if made.decorator_list else made
    paths = names.paths(mark.func if isinstance(mark, ast.Call) else mark)
    is_own = not any(names.paths(base) for base in made.bases)  # NamedTuple keeps a copy
    return paths == {"dataclasses.dataclass"} and is_own and name not in _read_in_body(made)


@lru_cache(maxsize=1)
def _read_in_body(made: ast.ClassDef) -> frozenset[str]:
    """Names that a class reads while it is made: of one class once, not for each of its fields."""
    seen: list[ast.AST | None] = []
    for line in made.body:  # a method's body does not see the names of its class
        is_method = isinstance(line, ast.FunctionDef)
        seen += [*line.decorator_list, line.args, line.returns] if is_method else [line]
    return frozenset(
        one.id
        for part in seen
        if part is not None
        for one in ast.walk(part)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
    )


def _check_attribute(node: ast.AST, base: ast.AST, name: str, names: Names) -> None:
    if name in FORBIDDEN_ATTRIBUTES or (_is_dunder(name) and name not in ALLOWED_DUNDERS):
        raise _Found("forbidden_attribute", node, f".{name} may not be used")
    for path in names.paths(base):
        if (bad := forbidden_part(f"{path}.{name}")) and not _is_dunder(name):
            raise _Found("forbidden_attribute", node, f"{path.split('.')[0]}.{bad} may not be used")
    if name == "compile" and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        raise _Found("forbidden_attribute", node, ".compile may not be used")
    if name == "__class__" and not names.is_only_looked_at(node):
        raise _Found("forbidden_attribute", node, ".__class__ may only be compared or named")
    if isinstance(base, ast.Name) and base.id in ("self", "cls"):
        return
    if name in MODULES or name in INSIDE_KERNELS:
        raise _Found("forbidden_attribute", node, f".{name} may not be used")
    if name.startswith("_") and name not in ALLOWED_DUNDERS:
        raise _Found("forbidden_attribute", node, f"private attribute .{name} may not be used")


def _check_change(node: ast.AST, base: ast.AST, name: str, names: Names) -> None:
    for path in names.paths(base):
        if not f"{path}.".startswith("torch.backends."):
            raise _Found("forbidden_attribute", node, f"{path}.{name} may not be changed")
    is_own = isinstance(base, ast.Name) and base.id in ("self", "cls")
    is_kernels = isinstance(base, ast.Name) and base.id in names.kernels
    if is_kernels or _is_dunder(name) or (name in HOOKED and not is_own):
        raise _Found("forbidden_attribute", node, f".{name} may not be changed")


def _check_call(node: ast.Call, names: Names) -> None:
    match node.func:
        case ast.Name(id=name) if name in COMPUTED:
            _check_computed(node, name, names)
        case ast.Name(id="type"):
            if len(node.args) != 1 or node.keywords:
                raise _Found("forbidden_call", node, "type takes one argument: write a class")
            if not names.is_only_looked_at(node):
                raise _Found("forbidden_call", node, "type(x) may only be compared or named")
    if any(path == "functools.wraps" for path in names.paths(node.func)) and (
        len(node.args) != 1 or node.keywords
    ):
        raise _Found("forbidden_call", node, "wraps takes one function")


def _check_computed(node: ast.Call, name: str, names: Names) -> None:
    attribute = node.args[1] if len(node.args) > 1 else None
    if not isinstance(attribute, ast.Constant) or not isinstance(attribute.value, str):
        raise _Found("forbidden_call", node, f"{name} needs a constant name")
    try:
        _check_attribute(node, node.args[0], attribute.value, names)
        if name != "getattr":
            _check_change(node, node.args[0], attribute.value, names)
        for path in names.paths(node.args[0]):
            found = f"{path}.{attribute.value}"
            if is_module(found) or found in CLASSES or found in PLACES:
                raise _Found("forbidden_call", node, "")
    except _Found as found:
        words = f"{name} of {attribute.value} may not be used"
        raise _Found("forbidden_call", node, words) from found


def _check_definition(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
    if isinstance(node, ast.ClassDef):
        if any(one.arg == "metaclass" for one in node.keywords):
            raise _Found("forbidden_definition", node, "a class may have no metaclass")
    elif _is_dunder(node.name) and node.name not in ALLOWED_METHODS:
        raise _Found("forbidden_definition", node, f"{node.name} may not be defined")


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and len(name) > 4
