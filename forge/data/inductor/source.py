"""Reads the text that Inductor would compile: its kernels, which are texts given to
`async_compile.triton`, and the method `call` of its `Runner`; and what all rewriting shares: names,
walks and copies of trees.
"""

from __future__ import annotations

import ast
import copy
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from forge.data.harvest.closure import method_of
from forge.data.harvest.records import Unanswered

SCALAR = re.compile(r"zf\d+$")
"""Names of numbers of forward, which kernels mention and launches do not pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedKernel:
    """A Triton kernel."""

    name: str
    params: tuple[str, ...]
    constexprs: frozenset[str]
    body: list[ast.stmt]
    kind: str
    """Name of its decorator: `pointwise`, `reduction`, `template`."""
    is_outer: bool
    """True if it reduces along another axis than the last one."""
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
class Traced:
    """A problem as Inductor answers it."""

    code: str
    """The text that Inductor would compile."""
    definitions: list[ast.stmt]
    """Definitions of the problem, with `ModelNew` in place of `Model`."""
    given: list[ast.expr]
    """The arguments of `call`, in names of forward."""
    result: ast.expr
    """The value that forward returns; names like `0` in it stand for what `call` returns."""
    names: dict[str, str]
    """Names for people of the symbols of sizes."""
    sizes: frozenset[int] = frozenset()
    """Lengths of all axes, and products of the last ones, of inputs, parameters and results."""

    @property
    def forward(self) -> ast.FunctionDef:
        """The method to be written anew. Raises Unanswered."""
        return forward_of(self.definitions)


def forward_of(definitions: list[ast.stmt]) -> ast.FunctionDef:
    """`forward` of ModelNew, into which that of a base class is copied. Raises Unanswered."""
    classes = {one.name: one for one in definitions if isinstance(one, ast.ClassDef)}
    model, waiting = classes["ModelNew"], ["ModelNew"]
    while waiting:
        owner = classes.get(waiting.pop(0))
        if owner is not None and (found := method_of(owner, "forward")) is not None:
            if owner is not model:  # others may need the base class as it is
                found = copy.deepcopy(found)
                model.body.append(found)
            return found
        waiting += [dotted(base) for base in (owner.bases if owner else ())]
    raise Unanswered("unknown statement", "no forward")


def read(code: str) -> GeneratedAnswer:
    """The kernels and `call` of the text that Inductor would compile. Raises Unanswered."""
    kernels: dict[str, GeneratedKernel] = {}
    combines: dict[str, ast.FunctionDef] = {}
    call: ast.FunctionDef | None = None
    for node in parse(code).body:
        match node:
            case ast.ClassDef(name="Runner"):
                call = method_of(node, "call")
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
                        raise Unanswered("unknown statement", f"two functions named {one.name}")
                kernels[name] = _kernel(main, name)
    assert call is not None
    return GeneratedAnswer(kernels=kernels, combines=combines, call=call)


def parse(text: str) -> ast.Module:
    """The tree of a text. Raises Unanswered."""
    try:
        with warnings.catch_warnings():  # of strings with unknown escapes: nothing to do about them
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        raise Unanswered("not python", type(err).__name__) from err


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


def expression(text: str) -> ast.expr:
    """The expression of a text."""
    return ast.parse(text, mode="eval").body


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


def free_name(wanted: str, taken: set[str]) -> str:
    """The name, or one with a number if it is taken; it is taken then."""
    options = (wanted, *(f"{wanted}_{number}" for number in range(2, 999)))
    chosen = next(one for one in options if one not in taken)
    taken.add(chosen)
    return chosen


def called(name: str, given: list[ast.expr]) -> ast.Call:
    """A call of a function by its name."""
    return ast.Call(func=named(name), args=given, keywords=[])


def is_call(node: ast.AST, name: str) -> bool:
    """True for a call of a function of that name, such as `tl.load`."""
    return isinstance(node, ast.Call) and dotted(node.func) == name


def _kernel(node: ast.FunctionDef, name: str) -> GeneratedKernel:
    constexprs = (one.arg for one in node.args.args if dotted(one.annotation) == "tl.constexpr")
    scalars = sorted(one for one in names_in(*node.body) if SCALAR.match(one))
    made = next(one for one in node.decorator_list if isinstance(one, ast.Call))
    given = {one.arg: one.value for one in made.keywords}
    signature = re.search(r"'signature': (\{.*?\})", ast.unparse(given["triton_meta"]))
    return GeneratedKernel(
        name=name,
        params=(*(one.arg for one in node.args.args), *scalars),
        constexprs=frozenset(constexprs),
        body=node.body,
        kind=dotted(made.func).rpartition(".")[2],
        is_outer=".OUTER" in ast.unparse(made),
        pointers=ast.literal_eval(signature[1]) if signature else {},
    )
