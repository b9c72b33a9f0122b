"""Kernels and launches as a person would write them: names of the model's tensors and sizes, values
below the line of forward that they compute, those that are used once inside the expression of that
line which uses them, no argument twice.

`rewrite` applies this last, to kernels that already are plain Triton. Each function may change the
trees that it is given.
"""

from __future__ import annotations

import ast
import copy
import keyword
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from forge.data.harvest.records import Answered, Unanswered
from forge.data.inductor import call
from forge.data.inductor.kernel import cleaned, plain, with_sizes_as_arguments, with_used_parameters
from forge.data.inductor.module import kernel_names, write_module
from forge.data.inductor.source import (
    TEMPORARY,
    GeneratedKernel,
    InOrder,
    Polynomial,
    Substituted,
    Traced,
    dotted,
    expression,
    free_name,
    is_call,
    named,
    names_in,
    nested,
    num_operations,
    polynomial,
    product,
    read,
    summed,
    tidy,
    walk,
)

MOST_OPERATIONS, MOST_INSIDE = 4, 2
"""Operations of an expression that takes in a value that is used once, and of such a value with a
name of its own."""
MOST_READS = 3
"""Reads of a parameter that may be a product of others instead."""
TYPES = {
    kind: named(f"torch.{name}")
    for kind, name in {
        "*fp32": "float32", "*fp16": "float16", "*bf16": "bfloat16", "*fp64": "float64",
        "*i64": "int64", "*i32": "int32", "*i8": "int8", "*u8": "uint8", "*i1": "bool",
    }.items()
}  # fmt: skip
"""Types of tensors by those of a kernel's pointers."""
COUNT = "n_elements"
NUMELS = {"xnumel": COUNT, "r0_numel": "row_length"}
ALONG = frozenset({
    *("tl.sum", "tl.max", "tl.min", "tl.reduce", "tl.associative_scan", "tl.cumsum", "tl.cumprod"),
    *("tl.argmax", "tl.argmin", "tl.xor_sum"),
})  # fmt: skip
"""Functions whose second argument is an axis."""
REDUCING = ("tl.sum", "tl.max", "tl.min", "tl.reduce")
KEEPING = frozenset({
    *("tl.sum", "tl.max", "tl.min", "tl.exp", "tl.log", "tl.sqrt", "tl.sqrt_rn", "tl.rsqrt"),
    *("tl.maximum", "tl.minimum", "tl.sigmoid", "tl.broadcast_to", "tl.dot", "tl.erf", "tl.abs"),
    "libdevice.tanh",
})  # fmt: skip
"""Functions whose result has the type of their first argument."""
VALUES = {
    "tl.sum": "total", "tl.max": "largest", "tl.min": "smallest", "tl.exp": "power",
    "tl.sqrt": "root", "tl.sqrt_rn": "root", "tl.rsqrt": "scale", "tl.full": "acc",
    "tl.zeros": "acc",
}  # fmt: skip
"""Names of values by the functions that make them."""


def readable(
    forward: call.Forward, kernels: dict[str, GeneratedKernel], sizes: Sequence[str]
) -> tuple[call.Forward, dict[str, GeneratedKernel]]:
    """The same steps and kernels with readable text; the names of sizes in the order of axes."""
    _name_buffers(forward)
    launches: dict[str, list[call.Launch]] = {name: [] for name in kernels}
    for step in forward.steps:
        if isinstance(step, call.Launch):
            launches[step.kernel].append(step)
            for key, value in step.arguments.items():
                if isinstance(value, call.View) and value.root.dtype is None:
                    value.root.dtype = TYPES.get(kernels[step.kernel].pointers.get(key, ""))
    made = {name: _kernel(one, launches[name]) for name, one in kernels.items()}
    for one in made.values():
        one.body[:] = [InOrder(sizes).visit(node) for node in one.body]
    return replace(forward, steps=list(_counted(forward))), made


def _kernel(kernel: GeneratedKernel, launches: list[call.Launch]) -> GeneratedKernel:
    kernel = _without_ones(kernel, launches)
    kernel = _with_known(kernel, launches, _repeated(kernel, launches))
    kernel = _with_known(kernel, launches, _products(kernel, launches))
    body = [tidy(node, is_kernel=True) for node in kernel.body]
    kernel = with_used_parameters(cleaned(replace(kernel, body=body)))
    for one in launches:
        one.keep(kernel.params)
    plainer = _Plainer(kernel)
    for _ in range(2):  # a cast shows what it is once it stands in the expression
        plainer = _Plainer(kernel)
        body = _nested([plainer.visit(node) for node in kernel.body])
        kernel = cleaned(replace(kernel, body=body))
    body = _visited(_Indices(plainer, is_template=kernel.kind == "template"), kernel.body)
    return _with_bias(_renamed(cleaned(replace(kernel, body=body)), launches), launches)


def _with_bias(kernel: GeneratedKernel, launches: list[call.Launch]) -> GeneratedKernel:
    """A convolution that adds the bias of its layer, if the layer has one: it is written in one way
    for both. The template's line that adds a bias reads the weight where there is none."""
    place, line = next(
        ((k, one) for k, one in enumerate(kernel.body) if isinstance(one, ast.AugAssign)), (0, None)
    )
    if kernel.kind != "template" or line is None or is_call(line.value, "tl.dot"):
        return kernel
    body, params = [*kernel.body], [*kernel.params]
    pointer = next(one for one in params if one in names_in(line) and one.endswith("_ptr"))
    is_biased = pointer not in names_in(*body[:place])
    layers = [one.window.weight.removesuffix(".weight") for one in launches if one.window]
    if len(layers) < len(launches):  # no layer: a function's bias is there or not
        return kernel if is_biased else replace(kernel, body=body[:place] + body[place + 1 :])
    if not is_biased:
        name = pointer.removesuffix("_weight_ptr") + "_bias_ptr"
        line = Substituted({pointer: named(name)}).visit(line)
        params.insert(params.index(pointer) + 1, name)
        for one, layer in zip(launches, layers, strict=True):
            bias = call.Root(expr=expression(f"{layer}.bias"), is_input=True)
            one.arguments[name] = call.View(root=bias)
        pointer = name
    body[place] = ast.parse(f"if {pointer} is not None:\n    {ast.unparse(line)}").body[0]
    return replace(kernel, body=body, params=tuple(params))


def _visited(by: ast.NodeTransformer, body: list[ast.stmt]) -> list[ast.stmt]:
    return [made for node in body if (made := by.visit(node)) is not None]


def _with_known(
    kernel: GeneratedKernel, launches: list[call.Launch], known: Mapping[str, ast.expr]
) -> GeneratedKernel:
    """The kernel without parameters whose values are known."""
    if not known:
        return kernel
    params = tuple(one for one in kernel.params if one not in known)
    for one in launches:
        one.keep(params)
    body = [Substituted(known).visit(node) for node in kernel.body]
    return replace(kernel, body=body, params=params, constexprs=kernel.constexprs - known.keys())


def _without_ones(kernel: GeneratedKernel, launches: list[call.Launch]) -> GeneratedKernel:
    """The kernel without constants that are 0 or 1 in each launch, and one row as a number; a
    convolution has the same constants wherever it stands."""
    if kernel.kind == "template":
        return kernel
    known: dict[str, ast.expr] = {}
    for name in kernel.constexprs:
        values = {one.sizes[name] for one in launches if name in one.sizes}
        if values in ({0}, {1}):
            known[name] = ast.Constant(values.pop())
    kernel = _with_known(kernel, launches, known)
    return replace(kernel, body=_visited(_OneRow(), kernel.body)) if "XBLOCK" in known else kernel


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
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "broadcast_to"
            and all(map(_is_one, node.args))
        ):
            return node.func.value
        match dotted(node.func), node.args:
            case name, [_, axis, *_] if name in ALONG and _is_one(axis):
                node.args[1] = ast.Constant(0)
                node.keywords = [one for one in node.keywords if one.arg != "keep_dims"]
            case "tl.where", [value, _]:
                return value
            case "tl.arange", [ast.Constant(0), ast.Constant(1)]:
                return ast.Constant(0)
            case "tl.full", [ast.List([ast.Constant(1)]), value, kind] if dotted(kind) in (
                "tl.int32",
                "tl.int64",
                "tl.int1",
                "tl.float32",
            ):
                return value
            case "tl.broadcast_to", [value, ast.List([ast.Constant(1)])]:
                return value
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if dotted(node.right) == "xmask":
            return node.left
        return node.right if dotted(node.left) == "xmask" else node


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def _repeated(kernel: GeneratedKernel, launches: list[call.Launch]) -> dict[str, ast.expr]:
    """Parameters that have the value of another one in each launch."""
    seen: dict[str, str] = {}
    known: dict[str, ast.expr] = {}
    for name in kernel.arguments:
        values = [one.arguments.get(name) for one in launches]
        numbers = [polynomial(one) for one in values if isinstance(one, ast.expr)]
        if len(numbers) == len(values):
            first = seen.setdefault(str([sorted(one.items()) for one in numbers]), name)
            if first != name:
                known[name] = named(first)
    return known


def _products(kernel: GeneratedKernel, launches: list[call.Launch]) -> dict[str, ast.expr]:
    """Parameters that are products of other ones and are read little."""
    reads = Counter(one.id for one in walk(*kernel.body) if isinstance(one, ast.Name))
    known: dict[str, ast.expr] = {}
    for name in kernel.arguments:
        if name not in NUMELS and reads[name] <= MOST_READS:
            found = {_in_parameters(name, one) for one in launches}
            if len(found) == 1 and (text := found.pop()):
                known[name] = expression(text)
    return known


def _in_parameters(name: str, launch: call.Launch) -> str:
    """The product that is given for a parameter, in names of other parameters; empty for another
    value."""
    given = launch.arguments.get(name)
    names = {
        value.id: named(key)
        for key, value in launch.arguments.items()
        if isinstance(value, ast.Name)
    }
    if isinstance(given, ast.BinOp) and all(
        isinstance(part, ast.Mult | ast.Constant | ast.Load)
        or (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult))
        or (isinstance(part, ast.Name) and part.id in names)
        for part in walk(given)
    ):
        return ast.unparse(Substituted(names).visit(copy.deepcopy(given)))
    return ""


class _Plainer(ast.NodeTransformer):
    """Loads, casts and shapes without what changes nothing."""

    def __init__(self, kernel: GeneratedKernel) -> None:
        self.pointers = kernel.pointers
        self.floats: dict[str, bool] = {}
        """True for names of fp32 values."""
        self.masks: dict[str, list[ast.expr]] = {}
        """Conditions of masks that all have to hold."""
        self.axes: dict[str, frozenset[str]] = {}
        """Axes of a block along which a name varies: `x`, `r`, `rows`, `columns`."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        name = dotted(node.targets[0])
        self.floats[name] = self._is_float(node.value)
        self.axes[name] = self._axes(node.value)
        self.masks[name] = _conditions(node.value)
        return node

    def _is_float(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return self.floats.get(name, False)
            case ast.Constant(value=value):
                return isinstance(value, float)
            case ast.BinOp(left=left, right=right):
                return self._is_float(left) or self._is_float(right)
            case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner):
                return self._is_float(inner)
            case ast.Call(func=ast.Attribute(attr="to"), args=[kind]):
                return dotted(kind) == "tl.float32"
            case ast.Call(args=[first, *others]):
                name = dotted(node.func)
                if name == "tl.load":
                    return any(self.pointers.get(one) == "*fp32" for one in names_in(first))
                if name == "tl.where":
                    return any(map(self._is_float, others[:2]))
                return name in KEEPING and self._is_float(first)
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
            case ast.Subscript(slice=ast.Tuple([first, second]), value=value) if isinstance(
                first, ast.Slice
            ) or isinstance(second, ast.Slice):  # a range becomes rows or columns of a block
                axes = self._axes(value)
                axis = "rows" if isinstance(first, ast.Slice) else "columns"
                return axes if axes - {"i"} else frozenset({axis})
            case ast.Call() if is_call(node, "tl.arange"):
                return frozenset({"i"})
            case ast.Name(id=name):
                return self.axes.get(name, frozenset())
            case _:
                parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
                return frozenset[str]().union(*map(self._axes, parts))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match dotted(node.func), node.args:
            case "tl.load", _:
                node.keywords = [one for one in node.keywords if one.arg != "eviction_policy"]
                self._narrow(node)
            case "tl.maximum" | "tl.minimum", [ast.Constant() as number, value]:
                node.args = [value, number]
            case "tl.where", [mask, first, second]:
                node.args[1] = self._spread(first, self._axes(mask) | self._axes(second))
            case "tl.broadcast_to", [value, ast.List(elts=shape)]:
                axes = self._axes(value)
                return value if len(shape) in (len(axes), len(axes - {"i"})) else node
            case _, [kind] if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
                return self._cast(node, node.func.value, dotted(kind))
        return node

    def _cast(self, node: ast.Call, value: ast.expr, kind: str) -> ast.expr:
        """A cast, or its value where that has the type."""
        match value:
            case ast.Call(func=ast.Attribute(attr="to"), args=[first]) if dotted(first) == kind:
                return value
            case _:
                is_needless = (kind == "tl.float32" and self._is_float(value)) or (
                    kind == "tl.int32" and self.is_index(value)
                )
                return value if is_needless and not node.keywords else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        node.left = self._spread(node.left, self._axes(node.right))
        node.right = self._spread(node.right, self._axes(node.left))
        if self._is_float(node.left):
            if isinstance(node.op, ast.Mult) and ast.unparse(node.right) in ("1", "1.0"):
                return node.left
            node.right = self._number(node.right)
        return node

    def _number(self, node: ast.expr) -> ast.expr:
        """A cast to fp32 of parameters of the kernel alone as the number itself."""
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[kind], keywords=[]) if (
                dotted(kind) == "tl.float32"
                and not any(isinstance(one, ast.Call) for one in walk(value))
                and (names := names_in(value))
                and names.isdisjoint(self.axes)
            ):
                return value
            case _:
                return node

    def _spread(self, node: ast.expr, axes: frozenset[str]) -> ast.expr:
        """A value without its broadcast, beside one that has all axes."""
        match node:
            case ast.Call(args=[value, ast.List(elts=shape)]) if is_call(node, "tl.broadcast_to"):
                return value if len(axes) >= len(shape) else node
            case _:
                return node

    def _narrow(self, node: ast.Call) -> None:
        """Gives a load along one axis of a block the condition for that axis alone."""
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
                    place.right, node.args[1] = index, copy.deepcopy(kept[0])


def _conditions(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return [*_conditions(left), *_conditions(right)]
        case _:
            return [node]


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
        match node:
            case ast.BinOp(ast.BinOp(_, ast.Mod(), inner) as left, ast.Mod(), outer) if ast.dump(
                inner
            ) == ast.dump(outer):
                return self.visit(left)
        if (
            isinstance(node.op, ast.Add | ast.Sub)
            and self.plainer.is_index(node)
            and self.pointers.isdisjoint(names_in(node))
        ):
            made = nested(node)
            if num_operations(made) < num_operations(node):
                return made
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return Substituted(self.rests).visit(node)

    def _rest(self, node: ast.BinOp) -> ast.expr | None:
        """The terms of the last axes, for the place by their size; None for another value."""
        if self.place is None or not isinstance(node.op, ast.Mod) or dotted(node.left) != "xindex":
            return None
        (factors, number), *more = polynomial(node.right).items()
        kept = Polynomial(
            {
                key: value
                for key, value in self.place.items()
                if value % number or Counter(factors) - Counter(key)
            }
        )
        return summed(kept) if len(kept) < len(self.place) and not more else None


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
                if name in waiting and _fits(node, name, waiting[name]):
                    if isinstance(node, ast.Assign):
                        node.type_comment = node.type_comment or waiting[name].type_comment
                    Substituted({name: waiting[name].value}).visit(node)
                    left.remove(waiting.pop(name))
                    count += 1
        left.append(node)
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if (
                name in once
                and _is_movable(value)
                and (TEMPORARY.match(name) or num_operations(value) <= MOST_INSIDE)
            ):
                waiting[name] = node
    return left, count


def _fits(node: ast.Assign | ast.Expr | ast.AugAssign, name: str, given: ast.Assign) -> bool:
    """True if the value of a name may stand in a statement: one of the same line of the problem, or
    of none."""
    whole, value, line = node.value, given.value, given.type_comment
    if line and getattr(node, "type_comment", "") not in (None, line):
        return False
    if isinstance(whole, ast.Name):
        return isinstance(node, ast.Assign)
    for one in walk(whole):
        if isinstance(one, ast.Attribute) and dotted(one.value) == name:
            return isinstance(value, ast.Call)
    return num_operations(whole) + num_operations(value) <= MOST_OPERATIONS


def _is_movable(value: ast.expr) -> bool:
    """True for a value that is the same wherever it is computed: no load, no reduction."""
    kept = ("load", "sum", "max", "min", "reduce", "dot", "scan", "associative_scan", "welford")
    return not any(
        isinstance(one, ast.Call)
        and dotted(one.func).rpartition(".")[2].startswith(kept)
        and dotted(one.func) not in ("tl.maximum", "tl.minimum")
        for one in walk(value)
    )


def _renamed(kernel: GeneratedKernel, launches: list[call.Launch]) -> GeneratedKernel:
    """The kernel with names from its first launch."""
    names = _Names(names_in(*kernel.body), kernel)
    if launches:
        for name in kernel.arguments:
            ending = "_ptr" if kernel.pointers.get(name, "").startswith("*") else ""
            names.add(name, _argument_name(name, launches[0].arguments.get(name), ending))
    has_rows = any(one.startswith("R") for one in kernel.constexprs)
    is_one_row = has_rows and "XBLOCK" not in kernel.params
    usual = {"r0_index": "columns", "r0_offset": "start", "r0_base": "base"} if has_rows else {}
    if is_one_row:
        row = "xindex" if "xindex" in names.taken else "xoffset"
        usual |= {"R0_BLOCK": "BLOCK", row: "row", "r0_mask": "mask"}
    elif has_rows:
        usual |= {"XBLOCK": "BLOCK_X", "R0_BLOCK": "BLOCK_R", "xindex": "rows"}
        usual |= {"xmask": "row_mask", "r0_mask": "column_mask"}
    else:
        usual |= {"XBLOCK": "BLOCK", "xindex": "offsets", "xmask": "mask"}
    for name, new in usual.items():
        names.add(name, new)
    for node in _in_order(kernel.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if TEMPORARY.match(name):
                names.add(name, _value_name(value, names.new))
            case ast.Assign(targets=[ast.Tuple(elts=parts)]):
                for one in map(dotted, parts):
                    if TEMPORARY.match(one):
                        names.add(one, one.replace("tmp", "t").lstrip("_"))
    new = {name: names.new.get(name, name) for name in [*kernel.params, *names.new]}
    for node in walk(*kernel.body):
        if isinstance(node, ast.Name):
            node.id = new.get(node.id, node.id)
    for node in kernel.body:
        if isinstance(node, ast.For):
            _renumber(node, kernel.body, {new[one] for one in kernel.params})
    for one in launches:
        one.arguments = {new[k]: v for k, v in one.arguments.items()}
        one.sizes = {new[k]: v for k, v in one.sizes.items()}
    share = "row" if is_one_row else "tile" if "BLOCK_M" in kernel.constexprs else "block"
    noted = (getattr(one, "type_comment", None) for one in _in_order(kernel.body))
    lines = dict.fromkeys(one for one in noted if one)
    if len(lines) == 1:  # above the kernel, and nowhere else
        for node in _in_order(kernel.body):
            vars(node).pop("type_comment", None)
    calls = {dotted(node.func) for node in walk(*kernel.body) if isinstance(node, ast.Call)}
    programs = f"One program a {share}." if "tl.program_id" in calls else "One program."
    comment = "\n".join([*(one.partition(" ")[2] for one in lines), programs])
    return replace(
        kernel, params=tuple(new[one] for one in kernel.params), comment=comment,
        constexprs=frozenset(new[one] for one in kernel.constexprs),
    )  # fmt: skip


def _renumber(loop: ast.For, body: list[ast.stmt], params: set[str]) -> None:
    """Gives the values of one loop the numbers that they would have without the loops before it."""
    inside = names_in(loop)
    fixed = params | names_in(*(one for one in body if not isinstance(one, ast.For)))
    outside = names_in(*(one for one in body if one is not loop))
    for name in sorted(inside - outside - params, key=lambda one: (len(one), one)):
        if match := re.fullmatch(r"(\w+?)_([2-9]|\d\d+)", name):
            options = (match[1], *(f"{match[1]}_{number}" for number in range(2, int(match[2]))))
            free = (one for one in options if one not in inside | fixed)
            if new := next(free, ""):
                inside = inside - {name} | {new}
                for one in walk(loop):
                    if isinstance(one, ast.Name) and one.id == name:
                        one.id = new


def _in_order(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        yield from _in_order(getattr(node, "body", []))


class _Names:
    """New names of a kernel, each once."""

    def __init__(self, taken: set[str], kernel: GeneratedKernel) -> None:
        self.new: dict[str, str] = {}
        self.taken = {*taken, *kernel.params, *keyword.kwlist, "tl", "triton", "libdevice"}

    def add(self, name: str, wanted: str) -> None:
        if name not in self.new and wanted != name:
            self.new[name] = free_name(wanted if wanted.isidentifier() else name, self.taken)


def _argument_name(name: str, value: object, ending: str) -> str:
    match value:
        case call.View(root=root):
            text = ast.unparse(root.expr)
            parts = [one for one in re.findall(r"[A-Za-z_]\w*", text) if one != "self"]
            return "_".join(parts[-2:] if root.is_input else parts[-1:]) + ending
        case ast.Name(id=other):
            return other
        case ast.expr() if name in NUMELS:
            return NUMELS[name]
        case ast.expr():
            parts = re.findall(r"[A-Za-z_]\w*", ast.unparse(value))
            return "_".join(parts) if 0 < len(parts) <= 3 else name
        case _:
            return name


def _value_name(value: ast.expr, new: Mapping[str, str]) -> str:
    function = dotted(value.func) if isinstance(value, ast.Call) else ""
    if function != "tl.load":
        return VALUES.get(function, "t")
    read = (new.get(one.id, one.id) for one in walk(value) if isinstance(one, ast.Name))
    return next((one.removesuffix("_ptr") for one in read if one.endswith("_ptr")), "value")


def _counted(forward: call.Forward) -> Iterator[call.Step]:
    """The steps, with a number of elements read from a tensor in place of a product."""
    taken = {one.name for one in forward.steps if isinstance(one, call.Number)} | forward.taken
    known: dict[str, str] = {}
    roots: list[call.Root] = [*forward.inputs]
    for step in forward.steps:
        if isinstance(step, call.Allocate):
            roots.append(step.root)
        value = step.arguments.get(COUNT) if isinstance(step, call.Launch) else None
        if isinstance(step, call.Launch) and isinstance(value, ast.BinOp):
            count = polynomial(value)
            key = str(sorted(count.items()))
            if key not in known:
                known[key] = free_name(COUNT, taken)
                same = (one.expr for one in roots if one.size and product(one.size) == count)
                of = next(same, None)
                number = value if of is None else expression(f"{ast.unparse(of)}.numel()")
                yield call.Number(name=known[key], value=number)
            step.arguments[COUNT] = new = named(known[key])
            for one in step.grid:
                if isinstance(one, ast.Call) and polynomial(one.args[0]) == count:
                    one.args[0] = new
        yield step


def _name_buffers(forward: call.Forward) -> None:
    """Gives buffers names by their role: `out` for a result, `hidden` for what lies between."""
    taken = {one.name for one in forward.steps if isinstance(one, call.Number)} | forward.taken
    results = {id(one.root) for one in forward.outputs}
    for step in forward.steps:
        match step:
            case (
                call.Allocate(root=call.Root(expr=ast.Name() as expr) as root)
                | call.Compute(result=call.Root(expr=ast.Name() as expr) as root)
            ) if re.fullmatch(r"buf\d+", expr.id):
                expr.id = free_name("out" if id(root) in results else "hidden", taken)


def rewrite(traced: Traced) -> Answered:
    """The plain module of a problem. Deterministic. Raises Unanswered for a form of code that is
    not known."""
    answer = read(traced.code, traced.lines)
    kernels = {one.name: plain(one) for one in answer.kernels.values()}
    forward = call.read_forward(answer, traced, kernels)
    kernels = {name: with_used_parameters(_sized(one, forward)) for name, one in kernels.items()}
    for step in forward.steps:
        if isinstance(step, call.Launch):
            step.keep(kernels[step.kernel].params)
    forward = replace(forward, steps=call.needed(forward.steps, forward.outputs))
    launched = {one.kernel for one in forward.steps if isinstance(one, call.Launch)}
    kernels = {name: one for name, one in kernels.items() if name in launched}
    if not kernels:
        raise Unanswered("no kernel", "no launch reaches a returned value")
    forward, kernels = readable(forward, kernels, [*traced.names.values()])
    code = write_module(answer, traced, kernels, forward)
    calls = (one.call for one in forward.steps if isinstance(one, call.Compute))
    return Answered(
        code=code,
        policy="hybrid" if any(isinstance(one, ast.Call) for one in calls) else "own",
        kernels=tuple(kernel_names(kernels).values()),
        products=sum(one.kind == "template" for one in kernels.values()),
    )


def _sized(kernel: GeneratedKernel, forward: call.Forward) -> GeneratedKernel:
    """The kernel with sizes from its arguments, where all launches pass the same number."""
    passed: dict[str, set[object]] = {}
    for step in forward.steps:
        if isinstance(step, call.Launch) and step.kernel == kernel.name:
            for name, value in step.arguments.items():
                number = value.value if isinstance(value, ast.Constant) else None
                passed.setdefault(name, set()).add(number)
    sizes = {name: one.pop() for name, one in passed.items() if len(one) == 1}
    return with_sizes_as_arguments(
        kernel, {name: size for name, size in sizes.items() if isinstance(size, int)}
    )
