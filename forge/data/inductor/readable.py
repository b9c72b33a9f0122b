"""Kernels and launches as a person would write them: names of the model's tensors and sizes, values
that are used once inside the expression that uses them, no argument twice.

Applied last, to kernels that already are plain Triton. Each function may change the trees that it
is given.
"""

from __future__ import annotations

import ast
import copy
import keyword
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from forge.data.inductor.expressions import (
    TEMPORARY,
    Polynomial,
    Substituted,
    nested,
    polynomial,
    product,
    summed,
    tidy,
)
from forge.data.inductor.kernel.body import cleaned, with_used_parameters
from forge.data.inductor.module import operations
from forge.data.inductor.source import dotted, is_call, named, names_in, walk
from forge.data.inductor.steps import Allocate, Compute, Launch, Number, Root, Step, View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.data.inductor.call import Forward
    from forge.data.inductor.source import GeneratedKernel

WIDEST = 72
"""Longest expression that takes in a value that is used once."""
SHORT = 26
"""Longest value with a name of its own that another expression takes in."""
TYPES = {
    kind: named(f"torch.{name}")
    for kind, name in {
        "*fp32": "float32", "*fp16": "float16", "*bf16": "bfloat16", "*fp64": "float64",
        "*i64": "int64", "*i32": "int32", "*i8": "int8", "*u8": "uint8", "*i1": "bool",
    }.items()
}  # fmt: skip
"""Types of tensors by those of a kernel's pointers."""
COUNT, LENGTH = "n_elements", "row_length"


def readable(
    forward: Forward, kernels: dict[str, GeneratedKernel]
) -> tuple[Forward, dict[str, GeneratedKernel]]:
    """The same steps and kernels with readable text."""
    _name_buffers(forward.steps, forward)
    launches: dict[str, list[Launch]] = {name: [] for name in kernels}
    for step in forward.steps:
        if isinstance(step, Launch):
            launches[step.kernel].append(step)
    for name, kernel in kernels.items():
        for one in launches[name]:
            for key, value in one.arguments.items():
                if isinstance(value, View) and value.root.dtype is None:
                    value.root.dtype = TYPES.get(kernel.pointers.get(key, ""))
    made = {name: _kernel(one, launches[name]) for name, one in kernels.items()}
    steps = _used(list(_counted(forward.steps, forward)), forward)
    return replace(forward, steps=steps), made


def _kernel(kernel: GeneratedKernel, launches: list[Launch]) -> GeneratedKernel:
    kernel = _without_ones(kernel, launches)
    kernel = _without_repeated(kernel, launches)
    kernel = _without_products(kernel, launches)
    body = [tidy(node, is_kernel=True) for node in kernel.body]
    kernel = with_used_parameters(cleaned(replace(kernel, body=body)))
    for one in launches:
        one.keep(kernel.params)
    body = kernel.body
    plainer = _Plainer(kernel.pointers, body)
    for _ in range(2):  # a cast shows what it is once it stands in the expression
        plainer = _Plainer(kernel.pointers, body)
        body = _nested([plainer.visit(node) for node in body])
        body = cleaned(replace(kernel, body=body)).body
    indices = _Indices(plainer, is_template=kernel.heuristic.kind == "template")
    body = cleaned(replace(kernel, body=_visited(indices, body))).body
    return _renamed(replace(kernel, body=body), launches)


def _visited(by: ast.NodeTransformer, body: list[ast.stmt]) -> list[ast.stmt]:
    return [made for node in body if (made := by.visit(node)) is not None]


class _Indices(ast.NodeTransformer):
    """Sums of products of indices and sizes with common factors outside, where that is shorter."""

    def __init__(self, plainer: _Plainer, *, is_template: bool) -> None:
        self.plainer = plainer
        self.pointers = {name for name, kind in plainer.pointers.items() if kind.startswith("*")}
        self.is_template = is_template
        self.place: Polynomial | None = None
        """The place in the output of a template, whose positions are within the output's sizes."""
        self.rests: dict[str, ast.expr] = {}
        """Values of names that are the place in the last axes."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        name, value = dotted(node.targets[0]), node.value
        if name == "xindex" and self.is_template:
            self.place = polynomial(value)
        if isinstance(value, ast.BinOp) and (rest := self._rest(value)) is not None:
            self.rests[name] = rest
            return None
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        node = Substituted(self.rests).visit(node)
        if (
            isinstance(node.op, ast.Add | ast.Sub)
            and self.plainer.is_index(node)
            and not any(isinstance(one, ast.Name) and one.id in self.pointers for one in walk(node))
        ):
            made = nested(node)
            if len(ast.unparse(made)) < len(ast.unparse(node)):
                return made
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return Substituted(self.rests).visit(node)

    def _rest(self, node: ast.BinOp) -> ast.expr | None:
        """The terms of the last axes, for the place by their size; None for another value."""
        if self.place is None or not isinstance(node.op, ast.Mod) or dotted(node.left) != "xindex":
            return None
        by = polynomial(node.right)
        if len(by) != 1:
            return None
        (factors, number), *_ = by.items()
        kept = Polynomial(
            {
                key: value
                for key, value in self.place.items()
                if value % number or Counter(factors) - Counter(key)
            }
        )
        return summed(kept) if len(kept) < len(self.place) else None


def _without_ones(kernel: GeneratedKernel, launches: list[Launch]) -> GeneratedKernel:
    """The kernel without constants that are 0 or 1 in each launch, and one row as a number; a
    convolution has the same constants wherever it stands."""
    known: dict[str, ast.expr] = {}
    if kernel.heuristic.kind == "template":
        return kernel
    for name in kernel.constexprs:
        values = {ast.dump(_as_node(one.sizes[name])) for one in launches if name in one.sizes}
        value = launches[0].sizes.get(name) if launches else None
        if len(values) == 1 and value in (0, 1):
            known[name] = ast.Constant(int(value == 1))
    if not known:
        return kernel
    body = [Substituted(known).visit(node) for node in kernel.body]
    if "XBLOCK" in known:
        body = _visited(_OneRow(), body)
    params = tuple(one for one in kernel.params if one not in known)
    for one in launches:
        one.sizes = {name: size for name, size in one.sizes.items() if name not in known}
    return replace(kernel, body=body, params=params, constexprs=kernel.constexprs - known.keys())


def _as_node(value: int | ast.expr) -> ast.expr:
    return value if isinstance(value, ast.expr) else ast.Constant(value)


class _OneRow(ast.NodeTransformer):
    """A program of one row: its index and its sums are numbers, no tensors of one element, and
    what lies along the row has one axis. The grid has no program beyond the last row."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        self.generic_visit(node)
        return None if dotted(node.targets[0]) == "xmask" else node

    def visit_List(self, node: ast.List) -> ast.AST:
        self.generic_visit(node)
        if len(node.elts) == 2 and _is_one(node.elts[0]):
            node.elts = node.elts[1:]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        match node.slice:
            case ast.Tuple(elts=[ast.Slice(), _] | [_, ast.Slice()]):
                return node.value
            case _:
                return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.args = [one for one in node.args if dotted(one) != "xmask"]
        match node:
            case ast.Call(args=[_, axis, *_]) if dotted(node.func) in ALONG and _is_one(axis):
                node.args[1] = ast.Constant(0)
                node.keywords = [one for one in node.keywords if one.arg != "keep_dims"]
                return node
            case ast.Call(args=[value, _]) if is_call(node, "tl.where"):
                return value
            case ast.Call(args=[ast.Constant(value=0), ast.Constant(value=1)]) if is_call(
                node, "tl.arange"
            ):
                return ast.Constant(0)
            case ast.Call(func=ast.Attribute(value=value, attr="broadcast_to"), args=shape) if all(
                _is_one(one) for one in shape
            ):
                return value
            case ast.Call(args=[ast.List(elts=[ast.Constant(value=1)]), value, kind]) if is_call(
                node, "tl.full"
            ) and dotted(kind) in ("tl.int32", "tl.int64", "tl.int1", "tl.float32"):
                return value
            case ast.Call(args=[value, ast.List(elts=[ast.Constant(value=1)])]) if is_call(
                node, "tl.broadcast_to"
            ):
                return value
            case ast.Call(keywords=[ast.keyword(arg="keep_dims")]):
                node.keywords = []
                return node
            case _:
                return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        is_raised = isinstance(node.right, ast.Call) and ast.unparse(node.right) == RAISED
        if is_raised or dotted(node.right) == "xmask":
            return node.left
        return node.right if dotted(node.left) == "xmask" else node


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


ALONG = frozenset({
    *("tl.sum", "tl.max", "tl.min", "tl.reduce", "tl.associative_scan", "tl.cumsum", "tl.cumprod"),
    *("tl.argmax", "tl.argmin", "tl.xor_sum", "tl.sort"),
})  # fmt: skip
"""Functions whose second argument is an axis."""


RAISED = "tl.zeros([1], tl.int1)"
"""Added to a number to make a tensor of it."""


def _without_repeated(kernel: GeneratedKernel, launches: list[Launch]) -> GeneratedKernel:
    """The kernel without parameters that have the value of another one in each launch."""
    seen: dict[tuple[str, ...], str] = {}
    known: dict[str, ast.expr] = {}
    for name in kernel.arguments:
        values = [one.arguments.get(name) for one in launches]
        if not all(isinstance(one, ast.expr) for one in values):
            continue
        key = tuple(
            str(sorted(polynomial(one).items())) for one in values if isinstance(one, ast.expr)
        )
        if key in seen:
            known[name] = ast.Name(id=seen[key], ctx=ast.Load())
        else:
            seen[key] = name
    for one in launches:
        one.arguments = {k: v for k, v in one.arguments.items() if k not in known}
    body = [Substituted(known).visit(node) for node in kernel.body] if known else kernel.body
    return replace(kernel, body=body, params=tuple(p for p in kernel.params if p not in known))


def _without_products(kernel: GeneratedKernel, launches: list[Launch]) -> GeneratedKernel:
    """The kernel without parameters that are products of other ones and are read little."""
    reads = Counter(one.id for one in walk(*kernel.body) if isinstance(one, ast.Name))
    known: dict[str, ast.expr] = {}
    for name in kernel.arguments:
        found = {ast.unparse(one) if one else "" for one in _in_parameters(name, launches)}
        text = found.pop() if len(found) == 1 else ""
        if text and name not in ("xnumel", "r0_numel") and reads[name] <= MOST_READS:
            known[name] = ast.parse(text, mode="eval").body
    if not known:
        return kernel
    for one in launches:
        one.arguments = {k: v for k, v in one.arguments.items() if k not in known}
    body = [Substituted(known).visit(node) for node in kernel.body]
    return replace(kernel, body=body, params=tuple(p for p in kernel.params if p not in known))


MOST_READS = 3


def _in_parameters(name: str, launches: list[Launch]) -> Iterator[ast.expr | None]:
    """A product that is given for a parameter, in names of other parameters; None for another
    value."""
    for one in launches:
        given = one.arguments.get(name)
        names = {
            dotted(value): ast.Name(id=key, ctx=ast.Load())
            for key, value in one.arguments.items()
            if isinstance(value, ast.Name)
        }
        if isinstance(given, ast.BinOp) and all(
            isinstance(part, ast.Mult | ast.Constant | ast.Load)
            or (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult))
            or (isinstance(part, ast.Name) and part.id in names)
            for part in walk(given)
        ):
            yield Substituted(names).visit(copy.deepcopy(given))
        else:
            yield None


class _Plainer(ast.NodeTransformer):
    """Loads, casts and shapes without what changes nothing."""

    def __init__(self, pointers: dict[str, str], body: list[ast.stmt]) -> None:
        self.pointers = pointers
        names = (one for one in walk(*body) if isinstance(one, ast.Name))
        self.reads = {one.id for one in names if isinstance(one.ctx, ast.Load)}
        self.floats: set[str] = set()
        """Names of fp32 values."""
        self.filled: dict[str, str] = {}
        """Masks of loaded values that are 0 elsewhere."""
        self.ranges: set[str] = set()
        """Names of the places in a row."""
        self.masks: dict[str, list[ast.expr]] = {}
        """Conditions of masks that all have to hold."""
        self.axes: dict[str, frozenset[str]] = {}
        """Axes of a block along which a name varies: `x`, `r`, `rows`, `columns`."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        match node.targets:
            case [ast.Name(id=name)]:
                if self._is_float(node.value):
                    self.floats.add(name)
                else:
                    self.floats.discard(name)
                self.axes[name] = self._axes(node.value)
                self.masks[name] = _conditions(node.value)
                if is_call(node.value, "tl.broadcast_to") and _is_range(node.value):
                    self.ranges.add(name)
                self.filled.pop(name, None)
                match node.value:
                    case ast.Call(
                        args=[_, mask], keywords=[ast.keyword(arg="other", value=ast.Constant(0.0))]
                    ) if is_call(node.value, "tl.load"):
                        self.filled[name] = ast.unparse(mask)
                    case _:
                        pass
            case [ast.Tuple(elts=[ast.Name() as most, ast.Name() as place])]:
                return self._one_of(node, most, place)
            case _:
                pass
        return node

    def _one_of(self, node: ast.Assign, most: ast.Name, place: ast.Name) -> ast.Assign:
        """The largest value, or its place in the row, where the other one is not read."""
        match node.value:
            case ast.Call(args=[ast.Tuple(elts=[value, index]), axis, joined]) if (
                dotted(joined) in WITH_INDEX
            ):
                functions = WITH_INDEX[dotted(joined)]
                if place.id not in self.reads:
                    target, function = most, functions[0]
                elif most.id not in self.reads and dotted(index) in self.ranges:
                    target, function = place, functions[1]
                else:
                    return node
                made = ast.Call(named(function), [value, axis], [])
                return ast.Assign(targets=[target], value=made, lineno=0)
            case _:
                return node

    def _is_float(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self.floats
            case ast.Constant(value=value):
                return isinstance(value, float)
            case ast.BinOp(left=left, right=right):
                return self._is_float(left) or self._is_float(right)
            case ast.UnaryOp(operand=inner):
                return self._is_float(inner)
            case ast.Subscript(value=inner):
                return self._is_float(inner)
            case ast.Call(func=ast.Attribute(attr="to"), args=[kind]):
                return dotted(kind) == "tl.float32"
            case ast.Call(args=[pointer, *_]) if is_call(node, "tl.load"):
                found = [one.id for one in walk(pointer) if isinstance(one, ast.Name)]
                return any(self.pointers.get(one) == "*fp32" for one in found)
            case ast.Call(args=[_, first, second, *_]) if is_call(node, "tl.where"):
                return self._is_float(first) or self._is_float(second)
            case ast.Call(args=[first, *_]) if dotted(node.func) in KEEPING:
                return self._is_float(first)
            case _:
                return False

    def is_index(self, node: ast.expr) -> bool:
        """True for sums and products of indices and sizes; loaded values may be no integers."""
        return not self._is_float(node) and not any(
            isinstance(one, ast.Call | ast.Compare)
            or (isinstance(one, ast.Name) and TEMPORARY.match(one.id))
            for one in walk(node)
        )

    def _axes(self, node: ast.expr) -> frozenset[str]:
        match node:
            case ast.Call(args=[value, *_]) if dotted(node.func) in REDUCING:
                return self._axes(value) - {"columns", "i"}
            case ast.Subscript(slice=ast.Tuple(elts=[ast.Slice(), _]), value=value):
                return self._block(value, "rows")
            case ast.Subscript(slice=ast.Tuple(elts=[_, ast.Slice()]), value=value):
                return self._block(value, "columns")
            case ast.Call() if is_call(node, "tl.arange"):
                return frozenset({"i"})
            case ast.Name(id=name):
                return self.axes.get(name, frozenset())
            case _:
                parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
                return frozenset[str]().union(*(self._axes(one) for one in parts))

    def _block(self, value: ast.expr, axis: str) -> frozenset[str]:
        """Axes of a range that becomes rows or columns of a block."""
        axes = self._axes(value)
        return axes if axes - {"i"} else frozenset({axis})

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call() if is_call(node, "tl.load"):
                node.keywords = [one for one in node.keywords if one.arg != "eviction_policy"]
                return self._narrowed(node)
            case ast.Call(args=[ast.Call(args=[mask, ast.Name(id=name), ast.Constant(0)]), _]) if (
                is_call(node, "tl.sum")
                and is_call(node.args[0], "tl.where")
                and self.filled.get(name) == ast.unparse(mask)
            ):
                node.args[0] = ast.Name(id=name, ctx=ast.Load())
                return node
            case ast.Call(args=[ast.Constant() as number, value]) if dotted(node.func) in (
                "tl.maximum",
                "tl.minimum",
            ):
                node.args = [value, number]
                return node
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Call(func=ast.Attribute(attr="to"), args=[first]) as inner, attr="to"
                ),
                args=[second],
            ) if dotted(first) == dotted(second):
                return inner
            case ast.Call(args=[mask, first, second]) if is_call(node, "tl.where"):
                full = self._axes(mask) | self._axes(second)
                node.args[1] = self._spread(first, full)
                return node
            case ast.Call(args=[value, ast.List(elts=shape)]) if is_call(node, "tl.broadcast_to"):
                axes = self._axes(value)
                return value if len(axes) == len(shape) or len(axes - {"i"}) == len(shape) else node
            case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[kind], keywords=[]) if (
                dotted(kind) == "tl.float32" and self._is_float(value)
            ):
                return value
            case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[kind], keywords=[]) if (
                dotted(kind) == "tl.int32" and self.is_index(value)
            ):
                return value
            case _:
                return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        node.left = self._spread(node.left, self._axes(node.right))
        node.right = self._spread(node.right, self._axes(node.left))
        if _is_unit(node) and self._is_float(node.left):
            return node.left
        if self._is_float(node.left) and (inner := _cast_number(node.right, self.axes)) is not None:
            node.right = inner
        return node

    def _spread(self, node: ast.expr, axes: frozenset[str]) -> ast.expr:
        """A value without its broadcast, beside one that has all axes."""
        match node:
            case ast.Call(args=[value, ast.List(elts=shape)]) if is_call(node, "tl.broadcast_to"):
                return value if len(axes) >= len(shape) else node
            case _:
                return node

    def _narrowed(self, node: ast.Call) -> ast.Call:
        """A load along one axis of a block, with the condition for that axis alone."""
        match node.args:
            case [
                ast.BinOp(
                    left=ast.Name(), op=ast.Add(),
                    right=ast.Call(args=[index, ast.List(elts=[_, _])]) as spread,
                ) as place, ast.Name(id=mask),
            ] if is_call(spread, "tl.broadcast_to") and not node.keywords:  # fmt: skip
                axes = self._axes(index)
                kept = [one for one in self.masks.get(mask, []) if self._axes(one) == axes]
                if len(axes) == 1 and len(kept) == 1:
                    place.right, node.args[1] = index, kept[0]
                return node
            case _:
                return node


def _conditions(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return [*_conditions(left), *_conditions(right)]
        case _:
            return [node]


WITH_INDEX = {
    "larger_with_index": ("tl.max", "tl.argmax"),
    "smaller_with_index": ("tl.min", "tl.argmin"),
}
REDUCING = ("tl.sum", "tl.max", "tl.min", "tl.reduce")
KEEPING = frozenset({
    *("tl.sum", "tl.max", "tl.min", "tl.exp", "tl.log", "tl.sqrt", "tl.sqrt_rn", "tl.rsqrt"),
    *("tl.maximum", "tl.minimum", "tl.sigmoid", "tl.broadcast_to", "tl.dot", "tl.erf", "tl.abs"),
    "libdevice.tanh",
})  # fmt: skip
"""Functions whose result has the type of their first argument."""


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted(node.args[0]) == "r0_index"


def _is_unit(node: ast.BinOp) -> bool:
    """True for a product with 1."""
    return isinstance(node.op, ast.Mult) and ast.unparse(node.right) in ("1", "1.0")


def _has_calls(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Call) for one in walk(node))


def _cast_number(node: ast.expr, axes: dict[str, frozenset[str]]) -> ast.expr | None:
    """The number in a cast to fp32 of parameters of the kernel alone."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[kind], keywords=[]) if (
            dotted(kind) == "tl.float32" and not _has_calls(value)
        ):
            names = [one.id for one in walk(value) if isinstance(one, ast.Name)]
            return value if names and not any(one in axes for one in names) else None
        case _:
            return None


def _nested(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements with values that are used once inside the expressions that use them."""
    for _ in range(60):
        reads: Counter[str] = Counter()
        stores: Counter[str] = Counter()
        for one in walk(*body):
            if isinstance(one, ast.Name):
                (reads if isinstance(one.ctx, ast.Load) else stores)[one.id] += 1
        once = {name for name in stores if stores[name] == 1 and reads[name] == 1}
        body, count = _one_pass(body, once)
        if not count:
            break
    return body


def _one_pass(body: list[ast.stmt], once: set[str]) -> tuple[list[ast.stmt], int]:
    """One pass over a block; inner blocks have their own. The statements, and how many went."""
    count = 0
    left: list[ast.stmt] = []
    waiting: dict[str, ast.Assign] = {}
    for node in body:
        for part in ("body", "orelse"):
            if inner := getattr(node, part, None):
                new, more = _one_pass(inner, once)
                setattr(node, part, new)
                count += more
        if isinstance(node, ast.Assign | ast.Expr | ast.AugAssign):
            for name in [one.id for one in walk(node) if isinstance(one, ast.Name)]:
                if name in waiting and _fits(node, name, waiting[name].value):
                    Substituted({name: waiting[name].value}).visit(node)
                    left.remove(waiting.pop(name))
                    count += 1
        left.append(node)
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if (
                name in once
                and _is_movable(value)
                and (TEMPORARY.match(name) or len(ast.unparse(value)) <= SHORT)
            ):
                waiting[name] = node
            case _:
                pass
    return left, count


def _fits(node: ast.Assign | ast.Expr | ast.AugAssign, name: str, value: ast.expr) -> bool:
    whole = node.value
    if isinstance(whole, ast.Name):
        return isinstance(node, ast.Assign)
    for one in walk(whole):
        if isinstance(one, ast.Attribute) and dotted(one.value) == name:
            return isinstance(value, ast.Call)
    return len(ast.unparse(whole)) + len(ast.unparse(value)) - len(name) <= WIDEST


def _is_movable(value: ast.expr) -> bool:
    """True for a value that is the same wherever it is computed: no load, no reduction."""
    kept = ("load", "sum", "max", "min", "reduce", "dot", "scan", "associative_scan", "welford")
    return not any(
        isinstance(one, ast.Call)
        and dotted(one.func).rpartition(".")[2].startswith(kept)
        and dotted(one.func) not in ("tl.maximum", "tl.minimum")
        for one in walk(value)
    )


def _renamed(kernel: GeneratedKernel, launches: list[Launch]) -> GeneratedKernel:
    """The kernel with names from its first launch."""
    names = _Names(names_in(*kernel.body), kernel)
    if launches:
        for name in kernel.arguments:
            names.add(name, _argument_name(name, launches[0].arguments.get(name)))
    has_rows = any(one.startswith("R") for one in kernel.constexprs)
    is_one_row = has_rows and "XBLOCK" not in kernel.params
    usual = {"XBLOCK": "BLOCK_X" if has_rows else "BLOCK", "R0_BLOCK": "BLOCK_R"}
    if is_one_row:
        row = "xindex" if "xindex" in names.taken else "xoffset"
        usual = {"R0_BLOCK": "BLOCK", row: "row", "r0_index": "columns", "r0_mask": "mask"}
        usual |= {"r0_offset": "start", "r0_base": "base"}
    elif has_rows:
        usual |= {
            "xindex": "rows",
            "xmask": "row_mask",
            "r0_index": "columns",
            "r0_mask": "column_mask",
        }
        usual |= {"r0_offset": "start", "r0_base": "base"}
    else:
        usual |= {"xindex": "offsets", "xmask": "mask"}
    for name, new in usual.items():
        names.add(name, new)
    for node in _assignments(kernel.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if TEMPORARY.match(name):
                names.add(name, _value_name(value, names))
            case ast.Assign(targets=[ast.Tuple(elts=parts)]):
                for one in parts:
                    if isinstance(one, ast.Name) and TEMPORARY.match(one.id):
                        names.add(one.id, one.id.replace("tmp", "t").lstrip("_"))
            case _:
                pass
    body = [_NewNames(names.new).visit(node) for node in kernel.body]
    for one in launches:
        one.arguments = {names.new.get(k, k): v for k, v in one.arguments.items()}
        one.sizes = {names.new.get(k, k): v for k, v in one.sizes.items()}
    return replace(
        kernel, body=body, params=tuple(names.new.get(one, one) for one in kernel.params),
        comment=_comment(kernel, is_one_row=is_one_row),
        constexprs=frozenset(names.new.get(one, one) for one in kernel.constexprs),
    )  # fmt: skip


def _comment(kernel: GeneratedKernel, *, is_one_row: bool) -> str:
    """A line that says which operations a kernel fuses, and what one program does."""
    share = "one program a row" if is_one_row else "one program a block"
    if "BLOCK_M" in kernel.constexprs:
        share = "one program a tile"
    return f"{', '.join(dict.fromkeys(operations(kernel.name)))[:70] or 'Copies'}: {share}."


def _assignments(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        yield from _assignments(getattr(node, "body", []))


class _Names:
    """New names of a kernel, each once."""

    def __init__(self, taken: set[str], kernel: GeneratedKernel) -> None:
        self.new: dict[str, str] = {}
        self.taken = {*taken, *kernel.params, *keyword.kwlist, "tl", "triton", "libdevice"}

    def add(self, name: str, wanted: str) -> None:
        if name in self.new or wanted == name:
            return
        wanted = wanted if wanted.isidentifier() else name
        self.new[name] = _free(wanted, self.taken)


def _argument_name(name: str, value: object) -> str:
    match value:
        case View(root=root):
            text = ast.unparse(root.expr)
            parts = [one for one in re.findall(r"[A-Za-z_]\w*", text) if one != "self"]
            return f"{'_'.join(parts[-2:] if root.is_input else parts[-1:])}_ptr"
        case ast.Name(id=other):
            return other
        case ast.expr():
            if name in ("xnumel", "r0_numel"):
                return {"xnumel": COUNT, "r0_numel": LENGTH}[name]
            parts = [one.id for one in walk(value) if isinstance(one, ast.Name)]
            return "_".join(parts) if 0 < len(parts) <= 3 else name
        case _:
            return name


def _value_name(value: ast.expr, names: _Names) -> str:
    match value:
        case ast.Call(args=[pointer, *_]) if is_call(value, "tl.load"):
            for one in walk(pointer):
                if isinstance(one, ast.Name) and names.new.get(one.id, one.id).endswith("_ptr"):
                    return names.new.get(one.id, one.id).removesuffix("_ptr")
            return "value"
        case ast.Call() if dotted(value.func) in VALUES:
            return VALUES[dotted(value.func)]
        case _:
            return "t"


VALUES = {
    "tl.sum": "total", "tl.max": "largest", "tl.min": "smallest", "tl.exp": "power",
    "tl.sqrt": "root", "tl.sqrt_rn": "root", "tl.rsqrt": "scale", "tl.full": "acc",
    "tl.zeros": "acc",
}  # fmt: skip


class _NewNames(ast.NodeTransformer):
    def __init__(self, new: dict[str, str]) -> None:
        self.new = new

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.new.get(node.id, node.id)
        return node


def _counted(steps: list[Step], forward: Forward) -> Iterator[Step]:
    """The steps, with a number of elements read from a tensor in place of a product."""
    taken = {one.name for one in steps if isinstance(one, Number)} | forward.taken
    known: dict[str, str] = {}
    roots: list[Root] = [*forward.inputs]
    for step in steps:
        if isinstance(step, Allocate):
            roots.append(step.root)
        value = step.arguments.get(COUNT) if isinstance(step, Launch) else None
        if isinstance(step, Launch) and isinstance(value, ast.BinOp):
            count = polynomial(value)
            key = str(sorted(count.items()))
            if key not in known:
                known[key] = _free(COUNT, taken)
                yield Number(name=known[key], value=_count(value, count, roots))
            new = ast.Name(id=known[key], ctx=ast.Load())
            step.grid = [_with_count(one, count, new) for one in step.grid]
            step.arguments[COUNT] = new
        yield step


def _free(wanted: str, taken: set[str]) -> str:
    """The name, or one with a number if it is taken."""
    chosen, number = wanted, 1
    while chosen in taken:
        number += 1
        chosen = f"{wanted}_{number}"
    taken.add(chosen)
    return chosen


def _count(value: ast.expr, count: Polynomial, roots: list[Root]) -> ast.expr:
    """`x.numel()` for the number of elements of a tensor."""
    for root in roots:
        if root.size is not None and product(root.size) == count:
            return ast.parse(f"{ast.unparse(root.expr)}.numel()", mode="eval").body
    return value


def _with_count(node: ast.expr, count: Polynomial, new: ast.expr) -> ast.expr:
    match node:
        case ast.Call(args=[value, block]) if (
            dotted(node.func) == "triton.cdiv" and polynomial(value) == count
        ):
            return ast.Call(func=node.func, args=[new, block], keywords=[])
        case _:
            return node


def _used(steps: list[Step], forward: Forward) -> list[Step]:
    """The steps without sizes that nothing reads."""
    for _ in range(20):
        read: set[str] = set()
        for step in steps:
            read |= _names_of(step)
        for one in forward.outputs:
            read |= names_in(one.write())
        read |= names_in(forward.result)
        left = [one for one in steps if not isinstance(one, Number) or one.name in read]
        if len(left) == len(steps):
            break
        steps = left
    return steps


def _names_of(step: Step) -> set[str]:
    """Names that a step reads."""
    match step:
        case Number():
            nodes: list[ast.expr] = [step.value]
        case Allocate():
            nodes = [*(step.root.size or ()), *(step.root.stride or ())]
        case Compute():
            nodes = [step.call, *(one.write() for one in step.tensors)]
        case Launch():
            given = step.arguments.values()
            nodes = [one.write() if isinstance(one, View) else one for one in given]
            nodes += [
                *step.grid,
                *(one for one in step.sizes.values() if isinstance(one, ast.expr)),
            ]
    return names_in(*nodes)


def _name_buffers(steps: list[Step], forward: Forward) -> None:
    """Gives buffers names by their role: `out` for a result, `hidden` for what lies between."""
    taken = {one.name for one in steps if isinstance(one, Number)} | forward.taken
    results = {id(one.root) for one in forward.outputs}
    for step in steps:
        match step:
            case Allocate(root=Root() as root) | Compute(result=Root() as root):
                name = dotted(root.expr)
                if re.fullmatch(r"buf\d+", name) and isinstance(root.expr, ast.Name):
                    root.expr.id = _free("out" if id(root) in results else "hidden", taken)
            case _:
                pass
