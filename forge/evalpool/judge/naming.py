"""What names mean in a candidate's source: which modules and classes they may stand for.

Used by `screen.py`. Pure. Promise: whatever scope a name is bound in, every meaning that an import
or an alias gives it anywhere is counted; it may be too careful, never too trusting.
"""

from __future__ import annotations

import ast
import re
import symtable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from forge.evalpool.judge.allowed import CLASSES, is_module

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPUTED = ("getattr", "setattr", "delattr")
KERNEL_MAKERS = re.compile(r"\b(jit|autotune|heuristics)\b")
_CHECKS = {"isinstance", "issubclass"}
_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)
_GENERICS = {"list", "tuple", "dict", "set"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What names mean in one source."""

    imported: dict[str, set[str]]
    """To dotted paths: `F` to `torch.nn.functional`. To several, if scopes differ."""
    bound: set[str]
    """Names that the source itself gives a meaning to, anywhere."""
    parents: dict[int, ast.AST]
    """Of each node, by its identity."""
    naming: set[int]
    """Expressions that only name a class: annotations, bases, what is called or checked for."""
    kernels: set[str]
    """Names of what Triton's decorators made, and their aliases."""

    @classmethod
    def of(cls, tree: ast.Module) -> Names:
        names = cls(
            imported={},
            bound={name for node in ast.walk(tree) for name in _bindings(node)},
            parents={id(c): node for node in ast.walk(tree) for c in ast.iter_child_nodes(node)},
            naming=set(),
            kernels={node.name for node in ast.walk(tree) if is_kernel(node)},
        )
        for node in ast.walk(tree):
            for name, path in _imports(node):
                names.imported.setdefault(name, set()).add(path)
        names._follow_aliases(tree)
        for node in ast.walk(tree):
            names.naming.update(map(id, names._named_in(node)))
        return names

    def paths(self, node: ast.AST) -> set[str]:
        """What a chain of attributes of something imported is called; empty for other nodes."""
        match node:
            case ast.Name(id=name):
                return self.imported.get(name, set())
            case ast.Attribute(value=base, attr=name):
                return {f"{path}.{name}" for path in self.paths(base)}
        return set()

    def means_builtin(self, name: str, *, among: set[str]) -> bool:
        return name in among - self.bound

    def is_followed(self, node: ast.AST) -> bool:
        """In front of a dot, given to a checked getattr, or an alias: never lost from sight."""
        match self.parents.get(id(node)):
            case ast.Attribute():
                return True
            case ast.Call(func=ast.Name(id=name), args=[first, *_]) if first is node:
                return self.means_builtin(name, among={*COMPUTED, "hasattr"})
            case ast.Assign(targets=[ast.Name()]) as assign:
                return not self.is_in_class_body(assign)
        return False

    def is_in_class_body(self, node: ast.AST) -> bool:
        """Where a name becomes an attribute, which nothing here follows."""
        above = self.parents.get(id(node))
        while above is not None and not isinstance(above, _SCOPES):
            above = self.parents.get(id(above))
        return isinstance(above, ast.ClassDef)

    def is_only_looked_at(self, node: ast.AST) -> bool:
        """A class as in `type(x).__name__`, `type(x) is y`, `type(x)(...)`, `print(type(x))`."""
        match self.parents.get(id(node)):
            case ast.Attribute(attr="__name__", ctx=ast.Load()):
                return True
            case ast.Call(func=function):
                is_printed = isinstance(function, ast.Name) and self.means_builtin(
                    function.id, among={"print", "str", "repr"}
                )
                return function is node or is_printed
            case ast.Compare() | ast.FormattedValue():
                return True
        return False

    def _follow_aliases(self, tree: ast.Module) -> None:
        """`F = torch.nn.functional` is as good as an import, in whatever order they stand. Each is
        looked at again only when what it reads came to mean more: takes time in proportion."""
        waiting: list[tuple[str, ast.expr]] = []
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    waiting.append((name, value))
        readers: dict[str, list[tuple[str, ast.expr]]] = {}
        for name, value in waiting:
            readers.setdefault(_root(value), []).append((name, value))
        while waiting:
            name, value = waiting.pop()
            if self._take_alias(name, value):
                waiting += readers.get(name, [])

    def _take_alias(self, name: str, value: ast.expr) -> bool:
        """Whether the name means more by it."""
        found = {p for p in self.paths(value) if is_module(p) or p in CLASSES}
        is_new = not found <= self.imported.get(name, set())
        if found:
            self.imported.setdefault(name, set()).update(found)
        if name not in self.kernels and self._makes_kernel(value):
            self.kernels.add(name)
            is_new = True
        return is_new

    def _makes_kernel(self, node: ast.AST) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self.kernels
            case ast.Call(func=maker):
                return KERNEL_MAKERS.search(ast.unparse(maker)) is not None
        return False

    def _named_in(self, node: ast.AST) -> Iterator[ast.AST]:
        match node:
            case ast.arg(annotation=ast.expr() as one) | ast.AnnAssign(annotation=one):
                yield from self._type_names(one)
            case ast.FunctionDef(returns=ast.expr() as one):
                yield from self._type_names(one)
            case ast.ClassDef():
                yield from node.bases
            case ast.Call(func=ast.Name(id=name), args=[_, one]) if self.means_builtin(
                name, among=_CHECKS
            ):
                yield from (one, *(one.elts if isinstance(one, ast.Tuple) else ()))
            case ast.Compare():  # no candidate may define what a comparison calls
                for one in (node.left, *node.comparators):
                    yield from (one, *(one.elts if isinstance(one, ast.Tuple) else ()))
            case ast.Call():
                yield node.func
            case ast.MatchClass():
                yield node.cls
            case ast.Assign(value=ast.Subscript() | ast.BinOp() as one):
                yield from self._type_names(one)

    def _type_names(self, node: ast.AST) -> Iterator[ast.AST]:
        """Of a type expression: names, `|`, and what stands in the brackets of real generics."""
        match node:
            case ast.Name() | ast.Attribute():
                yield node
            case ast.BinOp(op=ast.BitOr()):
                yield from (*self._type_names(node.left), *self._type_names(node.right))
            case ast.Tuple() | ast.List():
                for one in node.elts:
                    yield from self._type_names(one)
            case ast.Subscript(value=ast.Name(id=name), slice=inner) if self.means_builtin(
                name, among=_GENERICS
            ):
                yield from self._type_names(inner)
            case ast.Subscript(value=base, slice=inner) if self.paths(base) and all(
                path.startswith("typing.") for path in self.paths(base)
            ):
                yield from self._type_names(inner)


def _root(node: ast.expr) -> str:
    """The name in front of the dots; nothing for other expressions."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_kernel(node: ast.AST) -> TypeGuard[ast.FunctionDef]:
    """Whether it defines what Triton's decorators make."""
    return isinstance(node, ast.FunctionDef) and any(
        KERNEL_MAKERS.search(ast.unparse(mark)) for mark in node.decorator_list
    )


def _imports(node: ast.AST) -> list[tuple[str, str]]:
    match node:
        case ast.Import():
            tops = [one.name.split(".")[0] for one in node.names]
            return [
                (one.asname, one.name) if one.asname else (top, top)
                for one, top in zip(node.names, tops, strict=True)
            ]
        case ast.ImportFrom():
            return [(one.asname or one.name, f"{node.module}.{one.name}") for one in node.names]
    return []


def _bindings(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
        case ast.Import() | ast.ImportFrom():
            yield from (name for name, _ in _imports(node))


def reaching_builtins(table: symtable.SymbolTable, *, among: set[str]) -> set[str]:
    """Names that are not local where they are used. Class bodies see builtins too."""
    is_function = table.get_type() == "function"
    own = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or not is_function)
    }
    below = (reaching_builtins(child, among=among) for child in table.get_children())
    return (own & among).union(*below)
