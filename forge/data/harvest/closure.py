"""Self-contained problems from files of modules: a class with the imports, helpers and classes that
it uses, across the files of one tree.

    Library ─▶ CodeFile, one a module ─▶ Closure of a class ─▶ text in KernelBench's layout

Code is parsed and never imported. Definitions keep their text, without decorators that register or
export, annotations that name what is not there, and long docstrings; the class becomes `Model`, and
a name that two files define gets a number. The text may still fail: a sandbox tells.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

Node = TypeVar("Node", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef

ALLOWED = frozenset({
    "abc", "collections", "copy", "dataclasses", "enum", "functools", "inspect", "itertools",
    "logging", "math", "numbers", "numpy", "operator", "random", "re", "string", "torch", "types",
    "typing", "typing_extensions", "warnings",
})  # fmt: skip
"""Packages that a problem may import."""
NOT_ALLOWED = (
    "torch.cuda", "torch.distributed", "torch.hub", "torch.jit", "torch.multiprocessing",
    "torch.optim", "torch.utils.cpp_extension", "torch.utils.data", "torch.utils.tensorboard",
)  # fmt: skip
"""Parts of them that no reference needs, or that no sandbox has."""
MAX_DEFINITIONS = 24
"""Definitions of a problem: a larger one is a model, which teaches a kernel nothing."""
MAX_CHARS = 24_000
MAX_DOCSTRING = 240
KEPT_DECORATORS = frozenset({
    "property", "staticmethod", "classmethod", "dataclass", "dataclasses.dataclass",
    "functools.wraps", "functools.partial", "functools.lru_cache", "lru_cache", "wraps",
    "abstractmethod", "abc.abstractmethod", "torch.no_grad", "torch.autocast",
})  # fmt: skip
"""Decorators that a definition keeps; all others register, export or script it."""
KNOWN = frozenset(dir(builtins)) | {"__name__", "__class__", "__file__"}
LAYERS, FUNCTIONS = r"(Alpha|FeatureAlpha)?Dropout[123]?d?", r"(alpha_)?dropout[123]?d?"
"""Names of layers and functions that leave out values at random."""
MODEL = "Model"


TOO_DEEP = "nested too deep"
"""Reason against code of more levels than Python's own stack has room for."""


class NotSelfContained(Exception):
    """A class that is no problem; the message is the reason, in few distinct words."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Import:
    """A name that an import statement binds."""

    module: str
    """`torch.nn`; of a relative import, the absolute name."""
    name: str
    """The name in it; empty for the module itself."""

    def statement(self, bound: str) -> str:
        """The statement that binds `bound`."""
        if not self.name:
            is_plain = bound == self.module.partition(".")[0]
            return f"import {self.module}" + ("" if is_plain else f" as {bound}")
        return f"from {self.module} import {self.name}" + (
            "" if bound == self.name else f" as {bound}"
        )


Key = tuple[str, str]
"""A definition: the module that has it, and its name there."""


class CodeFile:
    """A parsed module: its definitions, imports and further statements."""

    def __init__(self, text: str, *, module: str = "", is_package: bool = False) -> None:
        """Raises SyntaxError, ValueError, RecursionError or MemoryError."""
        with warnings.catch_warnings(action="ignore"):  # of invalid escapes
            self.tree = ast.parse(text)
        self.text = text
        self.module = module
        self._package = module if is_package else module.rpartition(".")[0]
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, Import] = {}
        self.stars: list[str] = []
        """Modules whose names are imported all."""
        self._used: dict[str, frozenset[str]] = {}
        self._has_logger = False
        for node in _statements(self.tree.body):
            self._note(node)
        if self._has_logger:
            self._bind("logging", Import("logging", ""))
        self.order = {name: place for place, name in enumerate(self.definitions)}

    def _note(self, node: ast.stmt) -> None:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                self._bind(name, node)
            case ast.Import(names=names):
                for one in names:
                    bound = one.asname or one.name.partition(".")[0]
                    self._bind(bound, Import(one.name, ""))
            case ast.ImportFrom(names=names):
                base = self._absolute(node)
                for one in names:
                    if one.name == "*":
                        self.stars.append(base)
                    else:
                        self._bind(one.asname or one.name, Import(base, one.name))
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Attribute(attr="get_logger") | ast.Name(id="get_logger")),
            ):  # of the tree's own logging, which reaches for streams and environments
                self._bind(name, ast.parse(f"{name} = logging.getLogger(__name__)").body[0])
                self._has_logger = True
            case ast.Assign(targets=targets):
                for one in targets:
                    for each in ast.walk(one):
                        if isinstance(each, ast.Name):
                            self._bind(each.id, node)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                self._bind(name, node)

    def _bind(self, name: str, to: ast.stmt | Import) -> None:
        """The last meaning of a name counts."""
        self.definitions.pop(name, None)
        self.imports.pop(name, None)
        if isinstance(to, Import):
            self.imports[name] = to
        else:
            self.definitions[name] = to

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self._package.split(".") if self._package else []
        kept = parts[: len(parts) - node.level + 1]
        return ".".join([*kept, *([node.module] if node.module else [])])

    def used_by(self, name: str) -> frozenset[str]:
        """Global names that a definition uses."""
        if name not in self._used:
            node = cleaned(self.definitions[name], known=self.known)
            self._used[name] = globals_of(node) - {name}
        return self._used[name]

    @cached_property
    def known(self) -> frozenset[str]:
        """Names that an annotation may have: those of allowed imports."""
        allowed = (name for name, one in self.imports.items() if is_allowed(one) is None)
        return frozenset(allowed) | KNOWN

    def classes(self) -> Iterator[ast.ClassDef]:
        """Classes that may be modules: with a base, and with `forward` here or in a base here."""
        for name, node in self.definitions.items():
            if isinstance(node, ast.ClassDef) and node.bases and self.has_forward(name):
                yield node

    def has_forward(self, name: str, depth: int = 8) -> bool:
        """True if a class, or a base of it in this file, defines `forward`."""
        node = self.definitions.get(name)
        if not isinstance(node, ast.ClassDef) or not depth:
            return False
        return method_of(node, "forward") is not None or any(
            isinstance(base, ast.Name) and self.has_forward(base.id, depth - 1)
            for base in node.bases
        )


class Library:
    """The files of one tree of Python, each parsed once, when it is first asked for."""

    def __init__(
        self, root: Path | None, *, package: str = "", files: Mapping[str, CodeFile] | None = None
    ) -> None:
        """
        Args:
            root: the directory of the package, or of the tree; None if `files` are all.
            package: its dotted name; empty for a tree, whose modules are named from its root.
            files: modules that have been parsed.
        """
        self.root = root
        self.package = package
        self._files: dict[str, CodeFile | None] = {**(files or {})}

    def file(self, module: str) -> CodeFile | None:
        """A module of the tree; None if there is none, or if it is no Python."""
        if module not in self._files:
            self._files[module] = self._read(module)
        return self._files[module]

    def _read(self, module: str) -> CodeFile | None:
        prefix = f"{self.package}." if self.package else ""
        if self.root is None or not f"{module}.".startswith(prefix):
            return None
        inside = module[len(prefix) :]
        base = self.root.joinpath(*inside.split(".")) if inside else self.root
        paths = [base / "__init__.py", *([base.with_suffix(".py")] if inside else [])]
        return next((read_code(one, module=module) for one in paths if one.is_file()), None)


NO_CODE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors of a file that cannot be read or is no Python."""


def code_of(path: Path, *, module: str) -> CodeFile:
    """A parsed file, whose encoding its first lines may name. Raises one of NO_CODE."""
    with tokenize.open(path) as file:
        return CodeFile(file.read(), module=module, is_package=path.name == "__init__.py")


def read_code(path: Path, *, module: str) -> CodeFile | None:
    """A parsed file, as `code_of` gives it; None if it cannot be read or is no Python."""
    try:
        return code_of(path, module=module)
    except NO_CODE:
        return None


@dataclass(slots=True)
class _Scope:
    """The meanings of the global names that one module's definitions use."""

    keys: dict[str, Key] = field(default_factory=dict[str, Key])
    """Definitions of the tree, here or elsewhere."""
    modules: dict[str, str] = field(default_factory=dict[str, str])
    """Modules of the tree that are imported whole."""
    imports: dict[str, Import] = field(default_factory=dict[str, Import])


class Closure:
    """A class and all definitions that it uses, directly or not."""

    def __init__(self, library: Library, module: str, name: str) -> None:
        """Raises NotSelfContained."""
        self._library = library
        self.key: Key = (module, name)
        self._scopes: dict[str, _Scope] = {}
        self._found: dict[Key, ast.stmt] = {}
        self._waiting: list[tuple[str, str]] = []
        self._ask((module, name))
        self.require(())

    def require(self, names: Iterable[str]) -> None:
        """Adds what further expressions of the class's file use. Raises NotSelfContained."""
        for name in sorted(names):
            self._resolve(self.key[0], name)
        while self._waiting:
            self._resolve(*self._waiting.pop())

    @property
    def definitions(self) -> list[ast.stmt]:
        """The class, and what it uses."""
        return list(self._found.values())

    def method(self, name: str) -> ast.FunctionDef | None:
        """A method of the class or of the first base that has it."""
        key: Key | None = self.key
        for _ in range(8):
            node = self._found.get(key) if key else None
            if key is None or not isinstance(node, ast.ClassDef):
                return None
            if (found := method_of(node, name)) is not None:
                return found
            known = self._scopes[key[0]].keys
            bases = [one.id for one in node.bases if isinstance(one, ast.Name)]
            key = next((known[one] for one in bases if one in known), None)
        return None

    def _ask(self, key: Key) -> None:
        if key in self._found:
            return
        file = self._library.file(key[0])
        node = file.definitions.get(key[1]) if file is not None else None
        if file is None or node is None:
            raise NotSelfContained("unresolved name", key[1])
        self._found[key] = node
        if len(self._found) > MAX_DEFINITIONS:
            raise NotSelfContained(f"more than {MAX_DEFINITIONS} definitions")
        self._waiting += [(key[0], name) for name in sorted(file.used_by(key[1]))]

    def _resolve(self, module: str, name: str) -> None:
        scope = self._scopes.setdefault(module, _Scope())
        if name in scope.keys or name in scope.modules or name in scope.imports or name in KNOWN:
            return
        file = self._library.file(module)
        assert file is not None
        found = self._meaning(file, name)
        if isinstance(found, Import):
            if (reason := is_allowed(found)) is not None:
                raise NotSelfContained(reason, name)
            scope.imports[name] = found
        elif isinstance(found, str):
            scope.modules[name] = found
            self._ask_attributes(file, name, found)
        else:
            scope.keys[name] = found
            self._ask(found)

    def _ask_attributes(self, file: CodeFile, alias: str, module: str) -> None:
        """Asks for what `alias.name` names in the definitions of a file."""
        scope = self._scopes[file.module]
        for key in [one for one in self._found if one[0] == file.module]:
            for node in ast.walk(self._found[key]):
                match node:
                    case ast.Attribute(value=ast.Name(id=owner), attr=attr) if owner == alias:
                        inner = self._library.file(module)
                        found = None if inner is None else self._meaning(inner, attr)
                        if not isinstance(found, tuple):
                            raise NotSelfContained("unresolved name", f"{alias}.{attr}")
                        scope.keys[f"{alias}.{attr}"] = found
                        self._ask(found)

    def _meaning(self, file: CodeFile, name: str, depth: int = 8) -> Key | Import | str:
        """A definition, an import from outside, or a module of the tree. Raises
        NotSelfContained."""
        if name in file.definitions:
            return file.module, name
        if (found := file.imports.get(name)) is not None:
            return self._imported(found, name, depth)
        for star in file.stars:
            inner = self._library.file(star)
            if inner is not None and depth and (name in inner.definitions or name in inner.imports):
                return self._meaning(inner, name, depth - 1)
        raise NotSelfContained("unresolved name", name)

    def _imported(self, found: Import, name: str, depth: int) -> Key | Import | str:
        inner = self._library.file(found.module) if depth else None
        if not found.name:
            return found if inner is None else found.module
        if inner is not None and (found.name in inner.definitions or found.name in inner.imports):
            return self._meaning(inner, found.name, depth - 1)
        whole = f"{found.module}.{found.name}" if found.module else found.name
        if self._library.file(whole) is not None:
            return whole
        if inner is not None:
            return self._meaning(inner, found.name, depth - 1)
        return found

    def names(self) -> dict[Key, str]:
        """The names of the definitions in the text: `Model` for the class; a name that occurs twice
        gets a number."""
        taken = {MODEL, "get_inputs", "get_init_inputs"}
        taken |= {name for scope in self._scopes.values() for name in scope.imports}
        named: dict[Key, str] = {self.key: MODEL}
        for key in self._in_order():
            if key == self.key:
                continue
            name, number = key[1], 1
            while name in taken:
                number += 1
                name = f"{key[1]}{number}"
            taken.add(name)
            named[key] = name
        return named

    def _in_order(self) -> list[Key]:
        """Keys so that what a definition needs while it is made comes before it; where definitions
        need each other, those of their file in its order."""
        done: list[Key] = []
        begun: set[Key] = set()
        circular: set[str] = set()

        def visit(key: Key) -> None:
            if key in begun:
                if key not in done:
                    circular.add(key[0])
                return
            begun.add(key)
            scope = self._scopes.get(key[0], _Scope())
            file = self._library.file(key[0])
            assert file is not None
            for name in sorted(file.used_by(key[1]), key=lambda n: (file.order.get(n, -1), n)):
                if (other := scope.keys.get(name)) is not None:
                    visit(other)
            done.append(key)

        for key in self._found:
            visit(key)
        for module in circular:
            file = self._library.file(module)
            order = {} if file is None else file.order
            theirs = [key for key in done if key[0] == module]
            ordered = iter(sorted(theirs, key=lambda key: order[key[1]]))
            done = [next(ordered) if key[0] == module else key for key in done]
        return done

    def text(self, *, inputs: ast.expr, arguments: ast.expr, first: Sequence[ast.stmt] = ()) -> str:
        """The problem, for a list of arguments of forward, in names of the class's file, and what
        `get_init_inputs` returns; the constructor begins with `first`. Raises NotSelfContained if
        it is too long."""
        named = self.names()
        imports = {"import torch": None}
        for scope in self._scopes.values():
            imports |= {one.statement(bound): None for bound, one in scope.imports.items()}
        parts: list[str] = []
        written: set[int] = set()
        for key in self._in_order():
            node = self._found[key]
            if id(node) in written:
                continue
            written.add(id(node))
            file = self._library.file(key[0])
            assert file is not None
            made = cleaned(node, known=file.known)
            if key == self.key and first:
                constructor = (
                    method_of(made, "__init__") if isinstance(made, ast.ClassDef) else None
                )
                if constructor is None:
                    raise NotSelfContained("configuration without a constructor")
                constructor.body = [*first, *constructor.body]
            made = _Renaming(self._map(key[0], named)).visit(made)
            if isinstance(made, ast.ClassDef | ast.FunctionDef):
                made.name = named[key]
            parts.append(ast.unparse(ast.fix_missing_locations(made)))
        own = self._map(self.key[0], named)
        returned = [ast.unparse(_Renaming(own).visit(copied(one))) for one in (inputs, arguments)]
        head = "\n".join(sorted(imports, key=_import_order))
        whole = "\n\n\n".join([
            head,
            *parts,
            f"def get_inputs():\n    return {returned[0]}",
            f"def get_init_inputs():\n    return {returned[1]}",
        ])  # fmt: skip
        if len(whole) > MAX_CHARS:
            raise NotSelfContained(f"more than {MAX_CHARS} characters")
        return whole + "\n"

    def _map(self, module: str, named: Mapping[Key, str]) -> dict[str, str]:
        scope = self._scopes.get(module, _Scope())
        found = {name: named[key] for name, key in scope.keys.items() if key in named}
        found |= {key[1]: name for key, name in named.items() if key[0] == module}
        return {name: other for name, other in found.items() if name != other}


class _Renaming(ast.NodeTransformer):
    """Gives global names, and attributes of modules of the tree, their names in the text."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name):
            found = self._names.get(f"{node.value.id}.{node.attr}")
            if found is not None:
                return ast.Name(id=found, ctx=node.ctx)
        self.generic_visit(node)
        return node


def is_allowed(found: Import) -> str | None:
    """None for an import that a problem may have; else the reason against it."""
    package = found.module.partition(".")[0]
    whole = f"{found.module}.{found.name}" if found.name else found.module
    if package not in ALLOWED:
        return f"imports {package or 'its own package'}"
    if whole.startswith(NOT_ALLOWED):
        return f"imports {'.'.join(whole.split('.')[:2])}"
    return None


def method_of(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """A method that a class itself defines."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == name:
            return one
    return None


def globals_of(node: ast.AST) -> frozenset[str]:
    """Global names that a statement or expression uses, without builtins. Raises
    NotSelfContained."""
    text = ast.unparse(node)
    try:
        table = symtable.symtable(text, "code", "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise NotSelfContained("no Python", str(error)) from None
    found = {one.get_name() for one in table.get_symbols() if one.is_referenced()}
    todo = list(table.get_children())
    while todo:
        inner = todo.pop()
        todo += inner.get_children()
        found |= {
            one.get_name() for one in inner.get_symbols() if one.is_global() and one.is_referenced()
        }
    return frozenset(found - KNOWN)


def cleaned(node: ast.stmt, *, known: frozenset[str]) -> ast.stmt:
    """A copy without registering decorators, unknown annotations, long docstrings and dropout, by
    which a module in training would be random."""
    return _Cleaning(known).visit(copied(node))


class _Cleaning(ast.NodeTransformer):
    def __init__(self, known: frozenset[str]) -> None:
        self._known = known

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """`nn.Dropout(p)` becomes `nn.Identity()`, and `F.dropout(x, p)` becomes `x`."""
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=owner, attr=name) if re.fullmatch(LAYERS, name):
                identity = ast.Attribute(value=owner, attr="Identity", ctx=ast.Load())
                return ast.Call(func=identity, args=[], keywords=[])
            case ast.Attribute(attr=name) if re.fullmatch(FUNCTIONS, name) and node.args:
                return node.args[0]
            case _:
                return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        self._head(node)
        shown = ("extra_repr", "__repr__")  # methods that only print
        node.body = [one for one in node.body if getattr(one, "name", "") not in shown]
        node.body = [self.visit(one) for one in node.body] or [ast.Pass()]
        return node

    def visit_FunctionDef(self, node: Function) -> ast.stmt:
        self._head(node)
        node.returns = self._annotation(node.returns)
        self.generic_visit(node)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def _head(self, node: Function | ast.ClassDef) -> None:
        """Leaves out decorators, and a docstring: a long one, or that of a function."""
        node.decorator_list = [one for one in node.decorator_list if _is_kept(one)]
        said = (ast.get_docstring(node, clean=False) or "").strip()
        has_docstring = ast.get_docstring(node) is not None
        is_short = 0 < len(said) <= MAX_DOCSTRING and not isinstance(node, ast.FunctionDef)
        if has_docstring and not is_short:
            node.body = node.body[1:] or [ast.Pass()]

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = self._annotation(node.annotation)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        self.generic_visit(node)
        if node.value and self._annotation(node.annotation) is None:
            return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)
        return node

    def _annotation(self, node: ast.expr | None) -> ast.expr | None:
        """An annotation whose names are known; None for any other."""
        is_known = node is not None and all(
            not (isinstance(one, ast.Constant) and isinstance(one.value, str))
            and not (isinstance(one, ast.Name) and one.id not in self._known)
            for one in ast.walk(node)
        )
        return node if is_known else None


def copied(node: Node) -> Node:
    """A deep copy of a tree."""
    made: Any = type(node)()
    for name in node._attributes:
        if hasattr(node, name):
            setattr(made, name, getattr(node, name))
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            value = [copied(one) if isinstance(one, ast.AST) else one for one in value]
        elif isinstance(value, ast.AST):
            value = copied(value)
        setattr(made, name, value)
    return made


def _is_kept(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called) in KEPT_DECORATORS or (
        isinstance(called, ast.Attribute) and called.attr in ("setter", "getter")
    )


def _import_order(statement: str) -> tuple[bool, bool, str]:
    package = statement.split()[1].partition(".")[0]
    return package not in sys.stdlib_module_names, statement.startswith("from"), statement


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, with those of `if` and `try`; of two branches, the first."""
    for node in body:
        if isinstance(node, ast.Try):
            yield from _statements(node.body)
        elif isinstance(node, ast.If):
            yield from _statements(node.orelse)
            yield from _statements(node.body)
        else:
            yield node
