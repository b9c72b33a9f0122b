"""Reads an answer: its kernels, the body of `call`, the entry class, and everything else.

Kernels are jitted functions of the module, or texts given to `async_compile.triton`. `call` is a
function of the module, or a method of its `Runner`.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from forge.data.inductor.outcome import NotRewritten, RewriteReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Tree = TypeVar("Tree", bound=ast.AST)

SCALAR = re.compile(r"zf\d+$")
"""Names of numbers of forward, which kernels mention and launches do not pass."""
MAX_CHARS = 2_000_000
"""Longest answer that is read; the longest of KernelBook have 200,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heuristic:
    """Facts in a decorator of Inductor from which a launch's sizes follow."""

    kind: str
    """Name of the decorator: `pointwise`, `reduction`, `persistent_reduction`, ..."""
    size_hints: dict[str, int]
    """Powers of two that are no smaller than each axis: `x`, `y`, `z`, `r0_`."""
    reduction_hint: str
    """`INNER`, `OUTER`, `OUTER_TINY` or `DEFAULT`."""
    grid: str
    """Kind of grid; empty if the launch has one."""
    num_loads: int
    num_reductions: int
    num_warps: int
    """Given for a template; 0 elsewhere."""
    constants: dict[str, Any]
    """Parameters that a launch may leave out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedKernel:
    """A Triton kernel."""

    name: str
    params: tuple[str, ...]
    constexprs: frozenset[str]
    body: list[ast.stmt]
    heuristic: Heuristic | None
    """None if the launch itself gives the block sizes."""
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
    entry: ast.ClassDef
    others: list[ast.stmt]
    """The module's other statements, in their order."""


@dataclass(slots=True)
class _Reader:
    kernels: dict[str, GeneratedKernel] = field(default_factory=dict[str, GeneratedKernel])
    combines: dict[str, ast.FunctionDef] = field(default_factory=dict[str, ast.FunctionDef])
    others: list[ast.stmt] = field(default_factory=list[ast.stmt])
    classes: list[ast.ClassDef] = field(default_factory=list[ast.ClassDef])
    call: ast.FunctionDef | None = None

    def read(self, tree: ast.Module) -> None:
        for node in tree.body:
            match node:
                case ast.FunctionDef() if _is_jitted(node):
                    self.kernels[node.name] = _kernel(node, node.name)
                    self.combines[node.name] = node
                case ast.FunctionDef(name="call"):
                    self.call = node
                case ast.ClassDef(name="Runner"):
                    self.call = _method(node, "call") or self.call
                case ast.ClassDef():
                    self.classes.append(node)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as made) if (
                    dotted(made.func) == "async_compile.triton"
                ):
                    self._read_text(name, made)
                case _:
                    self.others.append(node)

    def _read_text(self, name: str, made: ast.Call) -> None:
        """A kernel given as text, which may define operators beside it."""
        if len(made.args) < 2 or not isinstance(text := made.args[1], ast.Constant):
            raise NotRewritten(
                RewriteReason.UNKNOWN_STATEMENT, f"{name} = async_compile.triton(...)"
            )
        jitted = [
            node
            for node in parse(str(text.value)).body
            if isinstance(node, ast.FunctionDef) and _is_jitted(node)
        ]
        if not jitted:
            raise NotRewritten(RewriteReason.UNKNOWN_STATEMENT, f"{name} has no kernel in its text")
        *operators, main = jitted
        for node in operators:
            known = self.combines.setdefault(node.name, node)
            if ast.dump(known) != ast.dump(node):
                raise NotRewritten(
                    RewriteReason.UNKNOWN_STATEMENT, f"two functions named {node.name}"
                )
        self.kernels[name] = _kernel(main, name)


def read(code: str, entry_point: str) -> GeneratedAnswer:
    """The parts of an answer. Raises NotRewritten."""
    reader = _Reader()
    reader.read(parse(code))
    if reader.call is None:
        raise NotRewritten(RewriteReason.NO_ENTRY_POINT, "no function `call`")
    entry = _entry(reader.classes, entry_point)
    return GeneratedAnswer(
        kernels=reader.kernels,
        combines=reader.combines,
        call=reader.call,
        entry=entry,
        others=[*reader.others, *(one for one in reader.classes if one is not entry)],
    )


def parse(text: str) -> ast.Module:
    """The tree of a text. Raises NotRewritten."""
    if len(text) > MAX_CHARS:
        raise NotRewritten(RewriteReason.NOT_PYTHON, f"{len(text)} characters")
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
    """The nodes with all below them, a parent before its children, without contexts and operators.

    Several times as fast as `ast.walk`, which also visits those: a data set has 18,000 answers.
    """
    stack: list[Any] = [*reversed(nodes)]
    while stack:
        node = stack.pop()
        if node is None:  # a key of `{**other}`
            continue
        yield node
        for name in CHILDREN[type(node)]:
            value = getattr(node, name, None)
            if type(value) is list:
                stack += value
            elif value is not None:
                stack.append(value)


def _subclasses(kind: type[ast.AST]) -> Iterator[type[ast.AST]]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


_NO_NODES = frozenset({
    *("ctx", "op", "ops", "id", "attr", "arg", "name", "names", "asname", "module", "level"),
    *("kind", "type_comment", "type_ignores", "conversion", "simple", "is_async", "rest"),
    *("kwd_attrs", "tag", "lineno", "col_offset", "type_params", "str"),
})  # fmt: skip
"""Fields with names, numbers and operators, whatever node they belong to."""

CHILDREN: dict[type[ast.AST], tuple[str, ...]] = {
    kind: tuple(name for name in kind._fields if name not in _NO_NODES)
    for kind in _subclasses(ast.AST)
} | {ast.Constant: (), ast.MatchSingleton: ()}
"""Fields of each kind of node that hold nodes, or lists of them."""


def copied(node: Tree) -> Tree:
    """A copy of a tree, without columns; contexts and operators are shared."""
    made = type(node)()
    for name in node._fields:
        value = getattr(node, name, None)
        if type(value) is list:
            value = [copied(one) if isinstance(one, ast.AST) else one for one in value]
        elif isinstance(value, ast.AST) and value._fields:
            value = copied(value)
        setattr(made, name, value)
    if isinstance(node, ast.stmt) and isinstance(made, ast.stmt):
        made.lineno = node.lineno  # which `ast.unparse` asks for
    return made


_GONE = ast.Pass()
"""Stands for a node that a transformer has removed from a list."""


class Transformer(ast.NodeTransformer):
    """A NodeTransformer that does not visit contexts, operators, names and numbers."""

    _visitors: ClassVar[dict[type[ast.AST], Any]]
    """The methods `visit_*` of a class itself, by kind of node."""

    def __init_subclass__(cls) -> None:
        found = {kind: cls.__dict__.get(f"visit_{kind.__name__}") for kind in CHILDREN}
        cls._visitors = {
            kind: visitor for kind, visitor in found.items() if CHILDREN[kind] or visitor
        }

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in CHILDREN[type(node)]:
            value = getattr(node, name, None)
            if type(value) is list:
                is_shorter = False
                for place, one in enumerate(value):
                    if one is not None and (new := self.visit(one)) is not one:
                        value[place] = _GONE if new is None else new
                        is_shorter = is_shorter or new is None
                if is_shorter:
                    value[:] = [one for one in value if one is not _GONE]
            elif value is not None:
                new = self.visit(value)
                if new is None:
                    delattr(node, name)
                elif new is not value:
                    setattr(node, name, new)
        return node

    def visit(self, node: ast.AST) -> Any:
        try:
            visitor = self._visitors[type(node)]
        except KeyError:
            return node  # without a method and without nodes below it
        return self.generic_visit(node) if visitor is None else visitor(self, node)


def is_call(node: ast.AST, name: str) -> bool:
    """True for a call of a function of that name, such as `tl.load`."""
    return isinstance(node, ast.Call) and dotted(node.func) == name


def calls_of(node: ast.AST, name: str) -> list[ast.Call]:
    """Calls of a plain name below a node."""
    return [one for one in walk(node) if isinstance(one, ast.Call) and dotted(one.func) == name]


def forward_of(entry: ast.ClassDef) -> ast.FunctionDef | None:
    """The method `forward` of a class."""
    return _method(entry, "forward")


def _method(owner: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    return None


def _entry(classes: Sequence[ast.ClassDef], entry_point: str) -> ast.ClassDef:
    """The class `<entry_point>New`, or the only class whose forward calls `call`."""
    callers = [one for one in classes if (f := forward_of(one)) and calls_of(f, "call")]
    named = [one for one in callers if one.name in (f"{entry_point}New", entry_point)]
    found = named or callers
    if len(found) != 1:
        names = ", ".join(one.name for one in found) or "no class"
        raise NotRewritten(RewriteReason.NO_ENTRY_POINT, f"{names}: one forward must call `call`")
    return found[0]


def _is_jitted(node: ast.FunctionDef) -> bool:
    return any(dotted(one) in ("triton.jit", "jit") for one in node.decorator_list)


def _kernel(node: ast.FunctionDef, name: str) -> GeneratedKernel:
    given = node.args
    if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs or given.defaults:
        raise NotRewritten(RewriteReason.UNKNOWN_STATEMENT, f"parameters of {name}")
    constexprs = (one.arg for one in given.args if dotted(one.annotation) == "tl.constexpr")
    scalars = sorted(
        {one.id for one in walk(*node.body) if isinstance(one, ast.Name) and SCALAR.match(one.id)}
    )
    return GeneratedKernel(
        name=name,
        params=(*(one.arg for one in given.args), *scalars),
        constexprs=frozenset(constexprs),
        body=node.body,
        heuristic=_heuristic(node),
        pointers=_signature(node),
    )


def _heuristic(node: ast.FunctionDef) -> Heuristic | None:
    for one in node.decorator_list:
        if isinstance(one, ast.Call):
            return _facts(dotted(one.func).rpartition(".")[2], one)
    return None


def _signature(node: ast.FunctionDef) -> dict[str, str]:
    """Types of the parameters in a decorator's `triton_meta`."""
    for one in node.decorator_list:
        if isinstance(one, ast.Call):
            given = {each.arg: each.value for each in one.keywords}
            found = literal(dict(_items(given.get("triton_meta"))).get("signature"), {})
            if isinstance(found, dict):
                return {str(name): str(kind) for name, kind in found.items()}
    return {}


def _facts(kind: str, made: ast.Call) -> Heuristic:
    given = {one.arg: one.value for one in made.keywords}
    inductor = dict(_items(given.get("inductor_meta") or given.get("meta")))
    triton = dict(_items(given.get("triton_meta") or given.get("meta")))
    constants = literal(triton.get("constants"), {})
    return Heuristic(
        kind=kind,
        size_hints=_size_hints(literal(given.get("size_hints"), {}), kind),
        reduction_hint=dotted(given.get("reduction_hint")).rpartition(".")[2] or "DEFAULT",
        grid=str(literal(inductor.get("grid_type"), "")),
        num_loads=_number(inductor.get("num_load")),
        num_reductions=_number(inductor.get("num_reduction")),
        num_warps=_number(given.get("num_warps")),
        constants={str(key): value for key, value in constants.items()}
        if isinstance(constants, dict)
        else {},
    )


def _size_hints(given: Any, kind: str) -> dict[str, int]:
    """Hints by axis. Older versions wrote a list: z, y, x, and the reduction last."""
    if isinstance(given, list | tuple):
        has_reduction = kind != "pointwise"
        num_others = len(given) - has_reduction
        if not 0 <= num_others <= 3:
            return {}
        names = [*reversed("xyz"[:num_others]), *(["r0_"] if has_reduction else [])]
        given = dict(zip(names, given, strict=True))
    if not isinstance(given, dict):
        return {}
    return {
        str(name): size
        for name, size in given.items()
        if isinstance(size, int) and 0 < size < 1 << 62
    }


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


def _number(node: ast.expr | None) -> int:
    value = literal(node, 0)
    return value if isinstance(value, int) else 0
