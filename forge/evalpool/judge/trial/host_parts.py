# pyright: strict, reportMatchNotExhaustive=false
"""Takes a candidate's source apart: what it imports and defines, and which of that can run. And
checks it before anything runs."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from forge.evalpool.judge.channel.words import at_line
from forge.evalpool.judge.trial.host_names import LIBRARIES
from forge.records.problem import syntax_tree
from forge.records.reason import Reason, Status
from forge.records.verdict import Verdict

Definition: TypeAlias = "ast.FunctionDef | ast.ClassDef"
SCOPES = (
    *(ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.DictComp),
)
ALLOWED = (
    "host code may name functions, layers and types of torch, shapes, strides and types of "
    "tensors, parameters, triton, math and what it defines itself"
)


class Refused(Exception):
    """The source has something that is in no list. The message names it."""

    def __init__(self, node: ast.AST, message: str, *, is_whole: bool = False) -> None:
        super().__init__(message)
        self.line: int = getattr(node, "lineno", 0)
        self.is_whole = is_whole
        """True if the message says what cannot be judged."""


def refusal(node: ast.AST, name: str, advice: str = ALLOWED) -> Refused:
    return Refused(node, f"host code names {name}; {advice}")


@lru_cache(maxsize=4)
def tree_of(source: str) -> ast.Module:
    """The tree of a source, parsed once for all who read it; takes 80 MB for one of 250 kB."""
    for one in (walk, bound_names):
        one.cache_clear()  # an entry holds the whole tree of an earlier source
    return syntax_tree(source)


@lru_cache(maxsize=256)
def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, remembered: most are walked several times."""
    return [*ast.walk(node)]


@dataclass(slots=True)
class Parts:
    """The parts of a source: what it imports (`aliases` are whole names of modules, and of what is
    imported of them, by the names that the source gives them; two where an import that fails has
    another in its place), statements at the top, functions and classes that something names that
    runs. Of `idle` definitions decorators, defaults and statements run alone. `own` names are bound
    at the top; of the `attributes` that classes set, `tensors` are parameters and buffers, `shared`
    all instances have. `gradients` is the one test of `requires_grad` that `Flow` has found."""

    imports: list[tuple[str, ast.AST]] = field(default_factory=list[tuple[str, ast.AST]])
    aliases: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    statements: list[ast.stmt] = field(default_factory=list[ast.stmt])
    functions: list[ast.FunctionDef] = field(default_factory=list[ast.FunctionDef])
    classes: list[ast.ClassDef] = field(default_factory=list[ast.ClassDef])
    idle: list[Definition] = field(default_factory=list[Definition])
    own: set[str] = field(default_factory=set[str])
    attributes: set[str] = field(default_factory=set[str])
    tensors: set[str] = field(default_factory=set[str])
    shared: set[str] = field(default_factory=set[str])
    gradients: frozenset[str] = frozenset()

    @property
    def class_names(self) -> set[str]:
        return {one.name for one in self.classes}

    def wholes(self, name: str, rest: str) -> list[str]:
        return [f"{path}.{rest}" if rest else path for path in self.aliases.get(name, ())]

    def paths(self, node: ast.Attribute, *, is_local: Callable[[str], bool]) -> list[str]:
        """The whole names of a module's attribute; none for that of a value."""
        first: ast.expr = node
        while isinstance(first, ast.Attribute):
            first = first.value
        if not isinstance(first, ast.Name) or is_local(first.id):
            return []
        return self.wholes(first.id, ast.unparse(node).partition(".")[2])

    def is_kernel(self, node: ast.FunctionDef) -> bool:
        """True for a function that Triton compiles."""
        made = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
        texts = (ast.unparse(one).partition(".") for one in made)
        return any("triton.jit" in self.wholes(name, rest) for name, _, rest in texts)

    def modules_of(self, node: ast.Assign) -> set[str]:
        """Modules that get another name: `libdevice = tl.math`."""
        if not isinstance(node.value, ast.Name | ast.Attribute):
            return set()
        name, _, rest = ast.unparse(node.value).partition(".")
        return {one for one in self.wholes(name, rest) if one in LIBRARIES}

    def take_import(self, node: ast.AST) -> None:
        pairs: list[tuple[str, str]] = []
        if isinstance(node, ast.ImportFrom):
            owner = "." * node.level + (node.module or "")
            pairs = [(f"{owner}.{one.name}", one.asname or one.name) for one in node.names]
        elif isinstance(node, ast.Import):
            for one in node.names:
                name = one.name.split(".")[0]
                pairs.append((one.name, one.asname) if one.asname else (name, name))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            pairs = [(path, node.targets[0].id) for path in self.modules_of(node)]
        for path, name in pairs:
            self.aliases.setdefault(name, set()).add(path)
            self.imports.append((path, node))

    def take_class(self, node: ast.ClassDef) -> None:
        self.classes.append(node)
        for statement in node.body:
            match statement:
                case ast.ClassDef():
                    self.attributes.add(statement.name)
                    self.take_class(statement)
                case ast.FunctionDef(name=name):
                    self.attributes.add(name)
                case (
                    ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name))
                ):
                    self.attributes.add(name)
                    self.shared.add(name)
        for one in walk(node):
            match one:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    self.attributes.add(name)
                case ast.Call(
                    func=ast.Attribute(attr="register_buffer" | "register_parameter"),
                    args=[ast.Constant(value=str() as name), *_],
                ):
                    self.tensors.add(name)
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                    value=ast.Call(func=ast.Attribute(attr="Parameter") | ast.Name(id="Parameter")),
                ):
                    self.attributes.add(name)
                    self.tensors.add(name)


def parts_of(tree: ast.Module, entry_point: str) -> Parts:
    """The parts of a source. Raises Refused if others name what `if __name__ == ...` sets."""
    parts = Parts()
    for node in walk(tree):
        parts.take_import(node)
    defined: dict[str, list[Definition]] = {}
    guarded = set[str]()
    for statement in tree.body:
        match statement:
            case ast.FunctionDef() | ast.ClassDef():
                defined.setdefault(statement.name, []).append(statement)
            case ast.Assign() if parts.modules_of(statement):
                pass
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), orelse=[]):
                parts.statements += statement.body
                guarded |= bound_names(ast.Module(statement.body, []))
            case _:
                parts.statements.append(statement)
    parts.own = {*bound_names(tree), *defined}
    reached = _reached(parts.statements, defined, entry_point)
    for one in (one for each in defined.values() for one in each):
        if one.name not in reached:
            parts.idle.append(one)
            continue
        for node in walk(one):
            if isinstance(node, ast.Name) and node.id in guarded:
                raise refusal(node, node.id, "it is set where __name__ is asked for")
        if isinstance(one, ast.ClassDef):
            parts.take_class(one)
        else:
            parts.functions.append(one)
    return parts


def _reached(
    statements: list[ast.stmt], defined: dict[str, list[Definition]], entry_point: str
) -> set[str]:
    """Names of the definitions that run: the entry point's, and what is named at the top."""
    reached = {entry_point}
    pending: list[ast.AST] = [*statements, *defined.get(entry_point, ())]
    for one in (one for each in defined.values() for one in each):
        pending += one.decorator_list
        if isinstance(one, ast.FunctionDef):
            pending.append(one.args)
        else:
            pending += (each for each in one.body if not isinstance(each, ast.FunctionDef))
    while pending:
        for node in walk(pending.pop()):
            if isinstance(node, ast.Name) and node.id in defined and node.id not in reached:
                reached.add(node.id)
                pending += defined[node.id]
    return reached


def is_decorated(node: ast.AST, word: str) -> bool:
    return any(word in ast.unparse(one) for one in getattr(node, "decorator_list", ()))


@lru_cache(maxsize=256)
def bound_names(scope: ast.AST) -> frozenset[str]:
    found, shared = set[str](), set[str]()
    if isinstance(scope, ast.FunctionDef | ast.Lambda):
        given = scope.args
        everything = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        found = {one.arg for one in everything if one is not None}
    if isinstance(scope, ast.GeneratorExp | ast.ListComp | ast.DictComp):
        targets = (node for one in scope.generators for node in walk(one.target))
        return frozenset(node.id for node in targets if isinstance(node, ast.Name))
    for node in _within(scope):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str() as name):
                found.add(name)
            case ast.Global(names=names):
                shared |= {*names}
    return frozenset(found - shared)


def _within(scope: ast.AST) -> list[ast.AST]:
    found = [*ast.iter_child_nodes(scope)]
    for child in found:  # which grows
        if not isinstance(child, SCOPES):
            found += ast.iter_child_nodes(child)
    return found


MAX_CODE_BYTES = 256_000


def check_source(code: str, *, entry_point: str) -> Verdict | None:
    """A fault of size, syntax or entry point; None if the source may run. A friendly check, not a
    boundary: what a source does is seen in its program."""
    if len(code.encode(errors="replace")) > MAX_CODE_BYTES:
        detail = f"the source is longer than {MAX_CODE_BYTES} bytes"
        return Verdict(status=Status.REJECTED, reason=Reason.TOO_LONG, detail=detail)
    tree, detail = None, ""
    try:
        tree = _parse(code)
    except SyntaxError as error:
        detail = at_line(code, error.lineno, f"{type(error).__name__}: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        detail = f"the source cannot be parsed: {type(error).__name__}"
    if tree is None:
        return Verdict(status=Status.COMPILE_ERROR, reason=Reason.SYNTAX_ERROR, detail=detail)
    imported = {o.asname or o.name for o in walk(tree) if isinstance(o, ast.alias)}
    if entry_point not in bound_names(tree) | imported:
        detail = f"the answer does not define class {entry_point}"
        return Verdict(status=Status.REJECTED, reason=Reason.NO_ENTRY_POINT, detail=detail)
    return None


def _parse(code: str) -> ast.Module:
    """The tree of a source that compiles. Nothing is compiled where there is a `finally`, which
    Python writes twice: 600 bytes with 20 of them, one in the other, would take all memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = tree_of(code)
        if "finally" not in code or not any(
            getattr(node, "finalbody", None) for node in walk(tree)
        ):
            compile(tree, "candidate.py", "exec")  # finds `return` outside a function and the like
    return tree
