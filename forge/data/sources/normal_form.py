"""Normal form of a reference: its code without everything that does not change what it computes.

Gone are comments, docstrings, annotations, import aliases, the names of classes, functions, locals
and own attributes, and code that the entry point does not use. Sizes are gone too, since a kernel
for one size is nearly one for another: the values of module constants, `get_inputs` and
`get_init_inputs`. Numbers inside the model stay. Two references with the same digest are
near-duplicates; the reverse does not hold, since the order of statements counts.

Pure; problem code is parsed, never run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import sha256

from forge.data.answers import parse
from forge.records import Message

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

DROPPED = frozenset(
    {"annotation", "returns", "type_comment", "ctx", "kind", "type_ignores", "type_params"}
)
"""Fields of syntax nodes that do not change what is computed."""
FENCED = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@lru_cache(maxsize=1 << 15)  # a run asks several times for its problems, at 1 to 2 ms each
def normal_digest(source: str, *, entry_point: str = "Model") -> str | None:
    """Digest of a reference's normal form; None if it is no Python or lacks the entry point."""
    tree = _parse(source)
    module = None if tree is None else _Module(tree, source)
    if module is None or entry_point not in module.definitions:
        return None
    return module.digest(entry_point)


def digests_in(text: str) -> set[str]:
    """Digests of all models in a message: in the whole text, or in its fenced blocks."""
    texts = [text] if _parse(text) is not None else FENCED.findall(text)
    return {
        digest
        for each in texts
        if (tree := _parse(each)) is not None
        for digest in _digests(_Module(tree, each))
    }


def digests_asked(messages: Iterable[Message]) -> set[str]:
    """Digests of all models that a conversation asks for: in the messages of its user."""
    asked = (message.content for message in messages if message.role == "user")
    return set[str]().union(*map(digests_in, asked))


def _digests(module: _Module) -> Iterator[str]:
    for name, node in module.definitions.items():
        if isinstance(node, ast.ClassDef) and "forward" in _methods(node):
            yield module.digest(name)


def _parse(source: str) -> ast.Module | None:
    return parse(source.replace("\r\n", "\n"))


def _methods(node: ast.ClassDef) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [each.name for each in node.body if isinstance(each, kinds)]


class _Module:
    """Names that a module defines at its top level."""

    def __init__(self, tree: ast.Module, source: str) -> None:
        self.source = source
        self.definitions: dict[str, Definition] = {}
        self.imports: dict[str, str] = {}
        self.constants: set[str] = set()
        for node in tree.body:
            if isinstance(node, Definition):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.imports.update(_imported(node))
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.constants.update(
                    each.id
                    for target in targets
                    for each in ast.walk(target)
                    if isinstance(each, ast.Name)
                )

    def digest(self, entry_point: str) -> str:
        """Digest of the normal form of one definition and of all that it uses."""
        try:
            text = "\n".join(_Writer(self).write_all(entry_point))
        except RecursionError:  # an expression of hundreds of terms: then the text itself counts
            text = self.source
        return sha256(text.encode(errors="replace")).hexdigest()[:32]


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Each name that an import binds, and what it stands for."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{node.module or ''}.{alias.name}"
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            first = alias.name.split(".")[0]
            yield first, first


class _Writer:
    """Writes definitions as tokens, with names replaced by numbers in the order of their use."""

    def __init__(self, module: _Module) -> None:
        self._module = module
        self._tokens: list[str] = []
        self._numbers: dict[str, str] = {}
        """Numbers of module-level names."""
        self._wanted: list[str] = []
        """Definitions that are still to be written."""
        self._scopes: list[dict[str, str]] = []
        self._attributes: dict[str, str] = {}
        """Own attributes and methods of the current class."""

    def write_all(self, entry_point: str) -> list[str]:
        """The tokens of a definition, then those of the ones that it uses."""
        self._number(entry_point)
        while self._wanted:
            self._scopes, self._attributes = [], {}
            self._node(self._module.definitions[self._wanted.pop(0)])
        return self._tokens

    def _number(self, name: str) -> str:
        if name not in self._numbers:
            self._numbers[name] = f"m{len(self._numbers)}"
            if name in self._module.definitions:
                self._wanted.append(name)
        return self._numbers[name]

    def _node(self, node: ast.AST) -> None:
        add = self._tokens.append
        match node:
            case ast.Name(id=name):
                is_bound = not isinstance(node.ctx, ast.Load) and bool(self._scopes)
                add(self._bind(name) if is_bound else self._known(name))
            case ast.Attribute(value=owner, attr=attr):
                if (dotted := self._dotted(node)) is not None:
                    add(dotted)
                    return
                add(f".{self._attributes.get(attr, attr) if _is_self(node) else attr}")
                self._node(owner)
            case ast.Constant(value=value):
                add(repr(value))
            case ast.Call(func=ast.Name(id="super")):
                add("Call")
                self._fields(node, but="args")
            case ast.ClassDef():
                add("class")
                outer, self._attributes = self._attributes, _own_attributes(node)
                self._fields(node, but="name")
                self._attributes = outer
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                known = self._attributes.get(name) or self._numbers.get(name, name)
                self._tokens += ["def", self._bind(name) if self._scopes else known]
                self._scope(node)
            case ast.Lambda():
                add("lambda")
                self._scope(node)
            case ast.arg(arg=name):
                add(self._bind(name) if self._scopes else name)
            case ast.Import() | ast.ImportFrom():
                if self._scopes:
                    self._scopes[-1].update(_imported(node))
            case ast.AnnAssign(target=target, value=value):  # as without the annotation
                if value is not None:
                    self._node(ast.Assign(targets=[target], value=value, lineno=node.lineno))
            case _:
                add(type(node).__name__)
                self._fields(node)

    def _fields(self, node: ast.AST, *, but: str = "") -> None:
        for name in node._fields:
            if name in DROPPED or name == but:
                continue
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                self._node(value)
            elif isinstance(value, list):
                self._list(value, is_body=name in ("body", "orelse", "finalbody"))
            elif value is not None:
                self._tokens.append(repr(value))

    def _list(self, nodes: list[ast.AST], *, is_body: bool) -> None:
        self._tokens.append("[")
        for node in nodes:
            match node:
                case ast.Expr(value=ast.Constant()) | ast.Pass() if is_body:
                    pass  # a docstring, or another constant that stands alone
                case ast.AST():
                    self._node(node)
                case _:
                    self._tokens.append(repr(node))
        self._tokens.append("]")

    def _bind(self, name: str) -> str:
        scope = self._scopes[-1]
        return scope.setdefault(name, f"v{len(scope)}")

    def _known(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        module = self._module
        if name in module.imports:
            return module.imports[name]
        if name in module.definitions or name in module.constants:
            return self._number(name)
        return name

    def _dotted(self, node: ast.expr) -> str | None:
        """`torch.nn.Linear` for `nn.Linear`; None for what is no name below an import."""
        if isinstance(node, ast.Attribute):
            owner = self._dotted(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        if not isinstance(node, ast.Name) or any(node.id in scope for scope in self._scopes):
            return None
        return self._module.imports.get(node.id)

    def _scope(self, node: ast.AST) -> None:
        self._scopes.append({})
        self._fields(node, but="name")
        self._scopes.pop()


def _is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _own_attributes(node: ast.ClassDef) -> dict[str, str]:
    """Numbers for methods and assigned attributes, in order; special methods keep their names."""
    names: dict[str, None] = {}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and _is_self(each):
            names[each.attr] = None
    names |= dict.fromkeys(_methods(node))
    kept = {name for name in names if name == "forward" or name.startswith("__")}
    return {name: f"a{number}" for number, name in enumerate(n for n in names if n not in kept)}
