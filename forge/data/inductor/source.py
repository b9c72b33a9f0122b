"""Reads the text that Inductor would compile: its kernels, which are texts given to
`async_compile.triton`, and the method `call` of its `Runner`; and what all rewriting shares: names,
walks and copies of trees, and its results: a plain module, or the reason why there is none.
"""

from __future__ import annotations

import ast
import copy
import re
import warnings
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator


Policy = Literal["own", "hybrid"]
"""The judge's policy under which a module is honest; see `judge.policy`."""


class RewriteReason(StrEnum):
    """Reasons why an answer is not rewritten. Data cards count them."""

    NOT_PYTHON = "not_python"
    """A text does not parse."""
    NO_KERNEL = "no_kernel"
    """No Triton kernel is launched for a value that forward returns."""
    UNKNOWN_HEURISTIC = "unknown_heuristic"
    """A kernel's decorator or grid is none for which block sizes are known: split scans,
    cooperative and combined kernels."""
    UNKNOWN_HELPER = "unknown_helper"
    """A kernel calls a function of Inductor's runtime that has no counterpart here."""
    UNKNOWN_STATEMENT = "unknown_statement"
    """A statement of `call`, or of forward, has a form that is not known."""
    UNKNOWN_OPERATION = "unknown_operation"
    """`call` uses an external kernel of Inductor."""
    UNKNOWN_NAME = "unknown_name"
    """The module would use a name that nothing in it defines: constants folded into the graph."""
    RANDOM = "random"
    """A kernel or `call` draws random numbers, which no judge can compare."""


class NotRewritten(ValueError):
    """An answer cannot be rewritten."""

    def __init__(self, reason: RewriteReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A plain module."""

    code: str
    """Source that needs torch and triton only, and defines `ModelNew`."""
    policy: Policy
    """`hybrid` if torch computes part of the answer: matrix products, convolutions."""
    kernels: tuple[str, ...] = ()
    """Names of the kernels."""
    products: int = 0
    """How many kernels are matrix products and convolutions, with what follows them."""


SCALAR = re.compile(r"zf\d+$")
"""Names of numbers of forward, which kernels mention and launches do not pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heuristic:
    """Facts in a decorator of Inductor from which a launch's sizes follow."""

    kind: str
    """Name of the decorator: `pointwise`, `reduction`, `persistent_reduction`, `template`."""
    reduction_hint: str
    """`INNER`, `OUTER`, `OUTER_TINY` or `DEFAULT`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedKernel:
    """A Triton kernel."""

    name: str
    params: tuple[str, ...]
    constexprs: frozenset[str]
    body: list[ast.stmt]
    heuristic: Heuristic
    fixed: dict[str, int] = field(default_factory=dict[str, int])
    """Values of constexprs that the body gave itself."""
    comment: str = ""
    """A line above it."""
    pointers: dict[str, str] = field(default_factory=dict[str, str])
    """Types of parameters where a decorator has them: `*fp32`."""

    @property
    def arguments(self) -> list[str]:
        """Parameters that a launch gives by position."""
        return [name for name in self.params if name not in self.constexprs]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedAnswer:
    """The parts of an answer."""

    kernels: dict[str, GeneratedKernel]
    """By the name under which `call` launches them."""
    combines: dict[str, ast.FunctionDef]
    """Jitted functions that kernels call: operators of scans."""
    call: ast.FunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The problem's side of an answer."""

    definitions: list[ast.stmt]
    """Definitions of the problem, with `ModelNew` in place of `Model`."""
    given: list[ast.expr]
    """The arguments of `call`, in names of forward."""
    result: ast.expr
    """The value that forward returns; names like `0` in it stand for what `call` returns."""

    @property
    def forward(self) -> ast.FunctionDef:
        """The method to be written anew. Raises NotRewritten."""
        classes = {one.name: one for one in self.definitions if isinstance(one, ast.ClassDef)}
        model, waiting = classes["ModelNew"], ["ModelNew"]
        while waiting:
            owner = classes.get(waiting.pop(0))
            if owner is not None and (found := _method(owner, "forward")) is not None:
                if owner is not model:  # of a base class, which others may need as it is
                    found = copy.deepcopy(found)
                    model.body.append(found)
                return found
            waiting += [dotted(base) for base in (owner.bases if owner else ())]
        raise NotRewritten(RewriteReason.UNKNOWN_STATEMENT, "no forward")


def read(code: str) -> GeneratedAnswer:
    """The kernels and `call` of the text that Inductor would compile. Raises NotRewritten."""
    kernels: dict[str, GeneratedKernel] = {}
    combines: dict[str, ast.FunctionDef] = {}
    call: ast.FunctionDef | None = None
    for node in parse(code).body:
        match node:
            case ast.ClassDef(name="Runner"):
                call = _method(node, "call")
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(args=[_, ast.Constant(value=str(text)), *_]) as made,
            ) if dotted(made.func) == "async_compile.triton":
                *operators, main = [
                    one for one in parse(text).body if isinstance(one, ast.FunctionDef)
                ]
                for one in operators:
                    known = combines.setdefault(one.name, one)
                    if ast.dump(known) != ast.dump(one):
                        raise NotRewritten(
                            RewriteReason.UNKNOWN_STATEMENT, f"two functions named {one.name}"
                        )
                kernels[name] = _kernel(main, name)
            case _:
                pass
    assert call is not None
    return GeneratedAnswer(kernels=kernels, combines=combines, call=call)


def parse(text: str) -> ast.Module:
    """The tree of a text. Raises NotRewritten."""
    try:
        with warnings.catch_warnings():  # of strings with unknown escapes: nothing to do about them
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        raise NotRewritten(RewriteReason.NOT_PYTHON, type(err).__name__) from err


def dotted(node: ast.AST | None) -> str:
    """A name with its attributes, such as `tl.load`; empty for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=attr):
            return f"{inside}.{attr}" if (inside := dotted(owner)) else ""
        case _:
            return ""


def named(name: str) -> ast.expr:
    """The expression of a name with its attributes."""
    first, *attributes = name.split(".")
    made: ast.expr = ast.Name(id=first, ctx=ast.Load())
    for one in attributes:
        made = ast.Attribute(value=made, attr=one, ctx=ast.Load())
    return made


def walk(*nodes: ast.AST) -> Iterator[ast.AST]:
    """The nodes with all below them, a parent before its children."""
    stack = [*reversed(nodes)]
    while stack:
        node = stack.pop()
        yield node
        stack += ast.iter_child_nodes(node)


def names_in(*nodes: ast.AST) -> set[str]:
    """All names below some nodes."""
    return {one.id for one in walk(*nodes) if isinstance(one, ast.Name)}


def is_call(node: ast.AST, name: str) -> bool:
    """True for a call of a function of that name, such as `tl.load`."""
    return isinstance(node, ast.Call) and dotted(node.func) == name


def calls_of(node: ast.AST, name: str) -> list[ast.Call]:
    """Calls of a plain name below a node."""
    return [one for one in walk(node) if isinstance(one, ast.Call) and dotted(one.func) == name]


def is_class(node: ast.stmt, name: str) -> bool:
    """True for the definition of a class."""
    return isinstance(node, ast.ClassDef) and node.name == name


def _method(owner: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    return None


def _kernel(node: ast.FunctionDef, name: str) -> GeneratedKernel:
    constexprs = (one.arg for one in node.args.args if dotted(one.annotation) == "tl.constexpr")
    scalars = sorted(
        {one.id for one in walk(*node.body) if isinstance(one, ast.Name) and SCALAR.match(one.id)}
    )
    made = next(one for one in node.decorator_list if isinstance(one, ast.Call))
    given = {one.arg: one.value for one in made.keywords}
    pointers = literal(dict(_items(given.get("triton_meta"))).get("signature"), {})
    return GeneratedKernel(
        name=name,
        params=(*(one.arg for one in node.args.args), *scalars),
        constexprs=frozenset(constexprs),
        body=node.body,
        heuristic=Heuristic(
            kind=dotted(made.func).rpartition(".")[2],
            reduction_hint=dotted(given.get("reduction_hint")).rpartition(".")[2],
        ),
        pointers={str(name): str(kind) for name, kind in pointers.items()},
    )


def _items(node: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), value


def literal(node: ast.expr | None, default: Any) -> Any:
    """The value of a literal; the default for any other expression."""
    if node is None:
        return default
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return default
