"""Reads the text that Inductor would compile: its kernels, which are texts given to
`async_compile.triton`, and the method `call` of its `Runner`; and what all rewriting shares: names,
walks and copies of trees, and expressions of sizes, their equality and their readable form.
"""

from __future__ import annotations

import ast
import copy
import math
import operator
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeVar

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
    """Lines above it."""
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


@dataclass(frozen=True, slots=True)
class Window:
    """A convolution or a pool that ran as a layer: its numbers, an axis each."""

    weight: str
    """The name that forward has for the weight, as `self.conv.weight`; empty for a pool."""
    numbers: list[dict[str, int]]
    texts: list[dict[str, str]]
    """Attributes of the layer that hold them."""

    def find(self, name: str, value: int) -> str:
        """Gives the attribute that holds the number of a constexpr, such as `STRIDE_H` or `STRIDE`;
        an empty text if none does."""
        kind, _, axis = name.partition("_")
        place = "DHW"[-len(self.numbers) :].find(axis)
        return self.texts[place][kind] if self.numbers[place].get(kind) == value else ""


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
    """Names for people of the symbols of sizes: axes of inputs, of parameters, others."""
    windows: Sequence[Window] = ()
    """Its convolutions and pools that are layers."""
    lines: Mapping[int, str] = field(default_factory=dict[int, str])
    """Its statements by number of line, which the code has behind the values that they compute."""

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


def read(code: str, lines: Mapping[int, str]) -> GeneratedAnswer:
    """The kernels and `call` of the text that Inductor would compile. The text of a line of the
    problem is the comment of the statements that compute it. Raises Unanswered."""
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
                _comment(main, text, lines)
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


def _comment(kernel: ast.FunctionDef, text: str, lines: Mapping[int, str]) -> None:
    """Gives the assignments of a kernel the lines of the problem whose numbers stand behind them,
    as `12 x = self.conv(x)`; loads, which come first, have none."""
    written, template = text.splitlines(), 0
    for node in walk(*kernel.body):
        match node:
            case ast.AnnAssign(target=ast.Name(id="LINE"), value=ast.Constant(value=int(template))):
                kernel.body.remove(node)
            case ast.Assign(targets=[ast.Name(id="acc")]):
                node.type_comment = lines.get(template)
            case ast.Assign(value=value) if not is_call(value, "tl.load"):
                number = re.search(r"#@(\d+)$", written[(node.end_lineno or 0) - 1])
                node.type_comment = lines.get(int(number[1])) if number else None


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


Node = TypeVar("Node", bound=ast.AST)

Polynomial = Counter[tuple[str, ...]]
"""Coefficients by factors, which are texts in order; no factors for the constant."""
MAX_TERMS = 400
TEMPORARY = re.compile(r"_?tmp\d+\w*$")
"""Names of values that a kernel loads or computes."""


def polynomial(node: ast.expr, *, is_expanded: bool = True) -> Polynomial:
    """The sum of products that an expression is; what is neither is a factor, and so is a sum in a
    product unless it is expanded."""
    match node:
        case ast.Constant(value=int(value)):
            made = Polynomial({(): int(value)})
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            made = Polynomial({key: -value for key, value in polynomial(inner).items()})
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            made = Polynomial(polynomial(left, is_expanded=is_expanded))
            sign = 1 if isinstance(op, ast.Add) else -1
            for key, value in polynomial(right, is_expanded=is_expanded).items():
                made[key] += sign * value
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if is_expanded:
            made = _product(polynomial(left), polynomial(right), node)
        case ast.BinOp(op=ast.Mult()):
            numbers = [n for one in _factors(node) if (n := _integer(one)) is not None]
            others = (ast.unparse(one) for one in _factors(node) if _integer(one) is None)
            made = Polynomial({tuple(sorted(others)): math.prod(numbers)})
        case _:
            made = Polynomial({(ast.unparse(node),): 1})
    return Polynomial({key: value for key, value in made.items() if value})


def _product(left: Polynomial, right: Polynomial, node: ast.expr) -> Polynomial:
    if len(left) * len(right) > MAX_TERMS:
        return Polynomial({(ast.unparse(node),): 1})
    made = Polynomial()
    for one, a in left.items():
        for other, b in right.items():
            made[tuple(sorted([*one, *other]))] += a * b
    return made


def product(sizes: Iterable[ast.expr]) -> Polynomial:
    """The product of some expressions."""
    made = Polynomial({(): 1})
    for one in sizes:
        made = _product(made, polynomial(one), one)
    return made


class _Tidied(ast.NodeTransformer):
    def __init__(self, *, is_kernel: bool) -> None:
        self.is_kernel = is_kernel

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        left, right, value = node.left, node.right, _integer(node.left)
        match left, node.op, right:
            case ast.Constant(int(a)), op, ast.Constant(int(b)) if b and a >= b:
                return ast.Constant(FOLDED[type(op)](a, b)) if type(op) in FOLDED else node
            case _, ast.FloorDiv(), ast.Constant(int(by)):
                return (not self.is_kernel and _ceiling(left, by)) or _divided(node, by)
            case _, ast.Add(), _ if value is not None:
                return _plus(right, value)
            case _, ast.Add(), ast.UnaryOp(op=ast.USub(), operand=positive):
                return ast.BinOp(left=left, op=ast.Sub(), right=positive)
            case ast.Constant(int(1)), ast.Mult(), other:
                return other
            case (other, ast.Mult(), ast.Constant(int(1))) | (
                other, ast.Add() | ast.Sub(), ast.Constant(int(0)),
            ):  # fmt: skip
                return other
            case _ if _has_values(node):
                return node
            case (_, ast.Mod(), ast.Constant(int(1))) | (_, ast.Mult(), ast.Constant(int(0))):
                return ast.Constant(0)
            case ast.BinOp(first, ast.Add(), ast.Constant(int(number))), ast.Add(), _:
                more = _integer(right)
                if more is not None:
                    return _plus(first, number + more)
                return _plus(ast.BinOp(left=first, op=ast.Add(), right=right), number)
            case _:
                return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        return node.value if isinstance(node.value, ast.Constant) else node


FOLDED: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
"""Operators of whole numbers, the first at least as large as the second, which is not 0."""


def _has_values(node: ast.expr) -> bool:
    """True for an expression of values, which may be floats: no other order, and NaN times 0."""
    return any(
        isinstance(one, ast.Call) or (isinstance(one, ast.Name) and TEMPORARY.match(one.id))
        for one in walk(node)
    )


def _integer(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int(value))):
            return -value
        case _:
            return None


def _plus(node: ast.expr, value: int) -> ast.expr:
    if value == 0:
        return node
    op = ast.Add() if value > 0 else ast.Sub()
    return ast.BinOp(left=node, op=op, right=ast.Constant(abs(value)))


def _ceiling(left: ast.expr, by: int) -> ast.expr | None:
    """`triton.cdiv(n, by)` for `(n + by - 1) // by` of a block size."""
    match left:
        case ast.BinOp(inner, ast.Add(), ast.Constant(int(rest))) if (
            rest == by - 1 and by >= 16 and by & (by - 1) == 0
        ):
            return called("triton.cdiv", [inner, ast.Constant(by)])
        case _:
            return None


def _divided(node: ast.BinOp, by: int) -> ast.expr:
    match node.left:
        case _ if by == 1:
            return node.left
        case ast.BinOp(inner, ast.FloorDiv(), ast.Constant(int(first))):
            return ast.BinOp(left=inner, op=ast.FloorDiv(), right=ast.Constant(first * by))
        case _:
            return node


def tidy(node: Node, *, is_kernel: bool = False) -> Node:
    """The expression with constants folded and last; the node may change.

    Outside a kernel, a division that rounds up becomes `triton.cdiv`.
    """
    return _Tidied(is_kernel=is_kernel).visit(node)


def nested(node: ast.expr) -> ast.expr:
    """A sum of products with common factors outside, in that of two forms with fewer operations:
    with sums that are factors multiplied out, or as they are."""
    forms = [_nested(polynomial(node, is_expanded=one)) for one in (True, False)]
    return min(forms, key=num_operations)


def num_operations(node: ast.expr) -> int:
    """The operations and calls of an expression. No form of a text depends on lengths of names: a
    kernel has the same lines with other names."""
    operations = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call)
    return sum(isinstance(one, operations) for one in walk(node))


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            yield from _factors(left)
            yield from _factors(right)
        case _:
            yield node


def _nested(terms: Polynomial) -> ast.expr:
    """A sum of products with common factors outside: `(n * channels + c) * width + column`. The
    factor of most terms comes last, so that an index is read from its first axis to its last."""
    counts = Counter(name for key in terms for name in set(key))
    name, count = max(counts.items(), key=lambda one: (one[1], one[0]), default=("", 0))
    if count < 2:
        return summed(terms)
    inner, rest = Polynomial(), Polynomial()
    for key, value in terms.items():
        if name in key:
            place = key.index(name)
            inner[(*key[:place], *key[place + 1 :])] = value
        else:
            rest[key] = value
    made = ast.BinOp(left=_nested(inner), op=ast.Mult(), right=expression(name))
    if not rest:
        return made
    return _added(made, _nested(rest))


def _added(left: ast.expr, right: ast.expr) -> ast.expr:
    match right:
        case ast.BinOp(left=first, op=ast.Add() | ast.Sub() as op, right=last):
            return ast.BinOp(left=_added(left, first), op=op, right=last)
        case ast.Constant(value=int(value)) if value < 0:
            return ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(-value))
        case _:
            return ast.BinOp(left=left, op=ast.Add(), right=right)


def summed(terms: Polynomial) -> ast.expr:
    """A polynomial as an expression, the longest products first."""
    made: ast.expr | None = None
    for key, value in sorted(terms.items(), key=lambda one: (one[1] < 0, -len(one[0]), one[0])):
        factors = [expression(one) for one in key]
        size = abs(value) if made is not None else value
        if size != 1 or not factors:
            factors.insert(0, ast.Constant(size))
        part = _multiplied(factors)
        if made is None:
            made = part
        else:
            op = ast.Add() if value > 0 else ast.Sub()
            made = ast.BinOp(left=made, op=op, right=part)
    return made or ast.Constant(0)


def _multiplied(factors: Sequence[ast.expr]) -> ast.expr:
    return reduce(lambda one, other: ast.BinOp(left=one, op=ast.Mult(), right=other), factors)


class InOrder(ast.NodeTransformer):
    """Writes products with what is no size first, then sizes from the first axis to the last."""

    def __init__(self, sizes: Sequence[str]) -> None:
        self.places = {name: place for place, name in enumerate(sizes)}

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mult):
            return node
        return _multiplied(sorted(_factors(node), key=lambda x: self.places.get(dotted(x), -1)))


class Substituted(ast.NodeTransformer):
    """Replaces names by copies of expressions."""

    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.known[node.id]) if node.id in self.known else node
