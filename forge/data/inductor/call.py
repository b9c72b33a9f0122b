"""Reads the body of `call` as the steps of forward: sizes, allocations, operations of torch in
place of Inductor's external kernels, and launches with their block sizes.

Every statement has one of a closed set of forms. What guards, synchronises or frees is left out;
names of buffers that stand for the same memory become one. Views of memory are written as torch's
own operations. Sizes are symbols, so that a block follows from the kind of a kernel and not from
the lengths that were traced.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from forge.data.harvest.records import Unanswered
from forge.data.inductor import source

Sizes = tuple[ast.expr, ...]
IGNORED = ("assert_size_stride", "get_raw_stream", "args.clear", "torch.cuda.set_device")
"""Calls that guard or synchronise."""
WRITTEN = ("out_ptr", "in_out_ptr")
"""Beginnings of the names of parameters that Inductor's kernels write to."""
DRAWS = ("rand", "seed", "bernoulli", "normal", "dropout")
"""Parts of the names of operations that draw random numbers."""
WINDOW = ("KERNEL", "STRIDE", "PADDING", "DILATION")
"""Beginnings of the names of a window's constexprs."""
TEMPLATE_GRID = ("_grid_0", "_grid_1", "_grid_2")
"""Last arguments of a template's launch."""
POINTWISE_BLOCK = 1024
"""Elements of a program. With 256, two a thread, an H200 reached 0.79 of the speed of torch."""
ROW_BLOCK = 1024
"""Elements of its row that a program's loop takes at a time."""
NEIGHBOURS = 32
"""Neighbouring sums of a program where the elements of each lie far apart."""


@dataclass(eq=False, slots=True, kw_only=True)
class Root:
    """Memory: an input, a parameter, a buffer, or the result of an operation."""

    expr: ast.expr
    """The name, or chain of attributes, under which forward knows it."""
    size: Sizes | None = None
    """None until an assertion gives it."""
    stride: Sizes | None = None
    dtype: ast.expr | None = None
    is_input: bool = False
    """True if it outlasts the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A tensor over the memory of a root."""

    root: Root
    size: Sizes | None = None
    """None: that of the root, and so is the stride."""
    stride: Sizes | None = None
    offset: ast.expr | None = None
    """None: where the root begins."""

    def write(self) -> ast.expr:
        """The tensor as an expression."""
        root, base = self.root, copy.deepcopy(self.root.expr)
        if self.size is None or self.stride is None:
            return base
        if self.offset is None and root.size is not None and root.stride is not None:
            if same(self.size, root.size) and same(self.stride, root.stride):
                return base
            is_whole = source.product(self.size) == source.product(root.size)
            if is_whole and all(is_contiguous(x.size, x.stride) for x in (self, root)):
                return _method(base, "view", copy.deepcopy([*self.size]))
            theirs = [
                *zip(
                    map(source.polynomial, root.size),
                    map(source.polynomial, root.stride),
                    strict=True,
                )
            ]
            ours = zip(
                map(source.polynomial, self.size), map(source.polynomial, self.stride), strict=True
            )
            order = [theirs.index(one) if one in theirs else -1 for one in ours]
            if sorted(order) == [*range(len(theirs))]:
                return _method(base, "permute", [ast.Constant(axis) for axis in order])
        given = [base, as_tuple(self.size), as_tuple(self.stride)]
        if self.offset is not None and root.is_input:  # which may begin inside of its storage
            start = source.expression(f"{ast.unparse(base)}.storage_offset()")
            given.append(ast.BinOp(left=start, op=ast.Add(), right=self.offset))
        elif self.offset is not None:
            given.append(self.offset)
        return source.called("torch.as_strided", given)


def _method(owner: ast.expr, name: str, given: list[ast.expr]) -> ast.Call:
    function = ast.Attribute(value=owner, attr=name, ctx=ast.Load())
    return ast.Call(func=function, args=given, keywords=[])


def same(left: Sequence[ast.expr], right: Sequence[ast.expr]) -> bool:
    """True if two sizes are equal, whatever the lengths are."""
    return [source.polynomial(one) for one in left] == [source.polynomial(one) for one in right]


def as_tuple(sizes: Sequence[ast.expr]) -> ast.Tuple:
    """Sizes as an expression."""
    return ast.Tuple(elts=[copy.deepcopy(one) for one in sizes], ctx=ast.Load())


def is_contiguous(size: Sequence[ast.expr] | None, stride: Sequence[ast.expr] | None) -> bool:
    """True for sizes and strides that leave no gap, in order, whatever the lengths are."""
    if size is None or stride is None or len(size) != len(stride):
        return False
    expected = source.product([])
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if source.polynomial(length) != source.product([]) and source.polynomial(step) != expected:
            return False
        expected = source.product([length, source.summed(expected)])
    return True


Value = View | ast.expr
"""An argument: a tensor, or a number."""


@dataclass(eq=False, slots=True, kw_only=True)
class Allocate:
    """A buffer begins."""

    root: Root


@dataclass(eq=False, slots=True, kw_only=True)
class Number:
    """A size gets a name."""

    name: str
    value: ast.expr


@dataclass(eq=False, slots=True, kw_only=True)
class Compute:
    """An operation of torch."""

    call: ast.expr
    """The operation; names like `0` in it stand for its tensors."""
    tensors: list[View]
    result: Root


@dataclass(eq=False, slots=True, kw_only=True)
class Launch:
    """A kernel is launched."""

    kernel: str
    arguments: dict[str, Value]
    """By parameter."""
    sizes: dict[str, int]
    """By constexpr."""
    grid: list[ast.expr]
    window: source.Window | None = None
    """The layer that it computes: a convolution or a pool."""

    def keep(self, names: Collection[str]) -> None:
        """Passes these parameters only."""
        self.arguments = {k: v for k, v in self.arguments.items() if k in names}
        self.sizes = {k: v for k, v in self.sizes.items() if k in names}

    def roots(self, beginnings: tuple[str, ...] = ("",)) -> Iterator[Root]:
        """The memory behind the parameters whose names begin so."""
        for name, value in self.arguments.items():
            if isinstance(value, View) and name.startswith(beginnings):
                yield value.root


Step = Allocate | Compute | Launch | Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """The steps of forward, and the value that it returns."""

    steps: list[Step]
    result: ast.expr
    """The returned expression; names like `0` in it stand for `outputs`."""
    outputs: list[View]
    device: ast.expr
    """The device of an input."""
    inputs: list[Root]
    """Memory of inputs and parameters."""
    taken: set[str]
    """Names that forward has already."""


def needed(steps: list[Step], outputs: list[View]) -> list[Step]:
    """The steps that reach an output."""
    live = {one.root for one in outputs}
    kept: list[Step] = []
    for step in reversed(steps):
        match step:
            case Allocate(root=made) if made not in live:
                continue
            case Compute(result=made):
                if made not in live:
                    continue
                live.update(one.root for one in step.tensors)
            case Launch():
                if live.isdisjoint(step.roots(WRITTEN)):
                    continue
                live.update(step.roots())
        kept.append(step)
    return kept[::-1]


def read_forward(
    answer: source.GeneratedAnswer,
    traced: source.Traced,
    kernels: dict[str, source.GeneratedKernel],
) -> Forward:
    """The steps of forward, those of `call`. Raises Unanswered."""
    reader = _CallReader(kernels, traced.names, traced.windows)
    known: dict[str, ast.expr] = {}
    outputs: list[View] = []
    for place, value in enumerate(reader.run(answer.call, traced.given)):
        if isinstance(value, View):
            known[str(place)] = ast.Name(id=str(len(outputs)), ctx=ast.Load())
            outputs.append(value)
        else:
            known[str(place)] = value
    inputs = [
        one.root for one in reader.names.values() if isinstance(one, View) and one.root.is_input
    ]
    tensors = [one.expr for one in inputs if one.size is not None]
    first = next((one for one in tensors if isinstance(one, ast.Name)), next(iter(tensors), None))
    device = (
        ast.Constant("cuda") if first is None else source.expression(f"{ast.unparse(first)}.device")
    )
    return Forward(
        steps=reader.steps,
        result=source.Substituted(known).visit(copy.deepcopy(traced.result)),
        outputs=outputs,
        device=device,
        inputs=inputs,
        taken={one.arg for one in source.walk(traced.forward) if isinstance(one, ast.arg)},
    )


@dataclass(slots=True)
class _CallReader:
    """Reads the body of `call`."""

    kernels: dict[str, source.GeneratedKernel]
    labels: dict[str, str]
    """Names for people of symbols of sizes, the first axis first."""
    windows: Sequence[source.Window]
    """Convolutions and pools that are layers."""
    names: dict[str, Value] = field(default_factory=dict[str, Value])
    steps: list[Step] = field(default_factory=list[Step])
    asserted: dict[str, list[ast.expr]] = field(default_factory=dict[str, list[ast.expr]])
    """Size and stride of tensors, by assertions."""
    returned: list[Value] = field(default_factory=list[Value])

    def run(self, call: ast.FunctionDef, given: list[ast.expr]) -> list[Value]:
        """The values that `call` returns for arguments, which forward names."""
        for one in reversed([*source.walk(call)]):
            if isinstance(one, ast.Call) and source.dotted(one.func) == "assert_size_stride":
                self.asserted[source.dotted(one.args[0])] = one.args[1:3]
        self._read_all(call.body, call.args.args[-1].arg, given)
        return self.returned

    def _read_all(self, body: Sequence[ast.stmt], parameter: str, given: list[ast.expr]) -> None:
        for node in body:
            match node:
                case ast.Assign(targets=[target], value=ast.Name(id=name)) if name == parameter:
                    for bound, expr in zip(_elements(target), given, strict=True):
                        is_number = isinstance(expr, ast.Constant)
                        root = Root(expr=expr, is_input=True)
                        self.names[source.dotted(bound)] = expr if is_number else View(root=root)
                case ast.With(items=[ast.withitem(context_expr=ast.Call() as guard)]) if (
                    source.dotted(guard.func) == "torch.cuda._DeviceGuard"
                ):
                    self._read_all(node.body, parameter, given)
                case ast.Return(value=ast.Tuple(elts=values)):
                    self.returned = [self.value(one) for one in values]
                case ast.Expr(value=ast.Call() as made):
                    self._do(made)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._assign(name, value)
                case ast.Delete() | ast.Pass() | ast.Expr(value=ast.Constant()):
                    pass
                case _:
                    _unknown(node)

    def _note_sizes(self, root: Root, size: ast.expr, stride: ast.expr) -> None:
        if root.size is None:
            root.size, root.stride = self._numbers(size), self._numbers(stride)

    def _assign(self, name: str, value: ast.expr) -> None:
        function = source.dotted(value.func) if isinstance(value, ast.Call) else ""
        match value:
            case ast.Call(args=[size, stride, dtype, *_]) if function == "empty_strided_cuda":
                root = Root(
                    expr=source.named(name), size=self._numbers(size), stride=self._numbers(stride),
                    dtype=dtype,
                )  # fmt: skip
                self.steps.append(Allocate(root=root))
                self.names[name] = View(root=root)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=kind), args=[]) if (
                kind in ("size", "stride") and isinstance(view := self.names.get(owner), View)
            ):
                made = {"size": "shape", "stride": "stride()"}[kind]
                self.names[name] = source.expression(f"{ast.unparse(view.root.expr)}.{made}")
            case ast.Subscript(value=ast.Name(id=owner)) if isinstance(
                self.names.get(owner), ast.expr
            ):
                self._number_step(name, self._number(value))
            case _ if name in self.labels:  # a formula, which shows the numbers of its layer
                self._number_step(name, _Placed(self, None).visit(copy.deepcopy(value)))
            case ast.Call() if function in ("copy_if_misaligned", "reinterpret_tensor"):
                self.names[name] = self.value(value)
            case ast.Call() if function.rpartition(".")[2] in IGNORED:
                pass
            case ast.Call() | ast.Subscript():
                root = Root(expr=source.named(name))
                if name in self.asserted:
                    self._note_sizes(root, *self.asserted[name])
                tensors: list[View] = []
                expr = _counterpart(value) if isinstance(value, ast.Call) else value
                expr = _Placed(self, tensors).visit(copy.deepcopy(expr))
                self.steps.append(Compute(call=expr, tensors=tensors, result=root))
                self.names[name] = View(root=root)
            case _:
                self.names[name] = self.value(value)

    def _number_step(self, name: str, value: ast.expr) -> None:
        """A size that is read once, under its own name."""
        if isinstance(value, ast.Name | ast.Constant):
            self.names[name] = value
            return
        label = self.labels.get(name, name)
        self.steps.append(Number(name=label, value=value))
        self.names[name] = source.named(label)

    def _do(self, made: ast.Call) -> None:
        """A call as a statement: a launch, an operation, or a guard."""
        name = source.dotted(made.func)
        kernel = self.kernels.get(name.removesuffix(".run"))
        if name == "assert_size_stride":
            if isinstance(view := self.names.get(source.dotted(made.args[0])), View):
                self._note_sizes(view.root, *made.args[1:3])
        elif kernel is not None:
            self.steps.append(self._launch(kernel, [self.value(one) for one in made.args]))
        elif name not in IGNORED and not name.endswith(".wait"):
            _counterpart(made)  # for its own reason
            _unknown(made)

    def _launch(self, kernel: source.GeneratedKernel, given: list[Value]) -> Launch:
        is_template = kernel.kind == "template"
        scalars = [one for one in kernel.arguments if source.SCALAR.match(one)]
        names = [one for one in kernel.arguments if one not in scalars]
        arguments = dict(zip([*names, *(TEMPLATE_GRID * is_template)], given, strict=True))
        arguments |= {name: self.value(source.named(name)) for name in scalars}
        grid = [arguments.pop(one) for one in TEMPLATE_GRID if is_template]
        programs = [one for one in grid or [arguments["xnumel"]] if isinstance(one, ast.expr)]
        sizes = {**kernel.fixed}
        if is_template:
            while len(programs) > 1 and ast.unparse(programs[-1]) == "1":
                programs.pop()
        else:
            (numel,) = programs
            chosen = _blocks(kernel, numel)
            sizes |= {name: size for name, size in chosen.items() if name in kernel.constexprs}
            programs = [_ceil(numel, chosen["XBLOCK"])]
        return Launch(
            kernel=kernel.name, arguments=arguments, sizes=sizes, grid=programs,
            window=self._window(kernel.name, arguments, sizes),
        )  # fmt: skip

    def _window(
        self, kernel: str, arguments: dict[str, Value], sizes: dict[str, int]
    ) -> source.Window | None:
        """The layer behind a launch: that of a weight, or a pool of the same numbers."""
        tensors = {
            ast.unparse(one.root.expr) for one in arguments.values() if isinstance(one, View)
        }
        numbers = [one for one in sizes if one.startswith(WINDOW)]
        for one in self.windows:
            is_same = all(one.find(name, sizes[name]) for name in numbers)
            if one.weight in tensors or (not one.weight and "pool" in kernel and is_same):
                return one
        return None

    def value(self, node: ast.expr) -> Value:
        """A tensor or a number of `call`."""
        match node:
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Call(func=ast.Name(id="copy_if_misaligned"), args=[tensor, *_]):
                return self.value(tensor)
            case ast.Call(
                func=ast.Name(id="reinterpret_tensor"), args=[tensor, size, stride, *offset]
            ):
                return self._view(tensor, size, stride, offset)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="item")) if (
                name in self.names
            ):
                _unknown(node)
            case _:
                return self._number(node)

    def _view(
        self, tensor: ast.expr, size: ast.expr, stride: ast.expr, offset: list[ast.expr]
    ) -> View:
        base = self.value(tensor)
        if not isinstance(base, View):
            _unknown(tensor)
        moved = self._number(offset[0]) if offset else ast.Constant(0)
        total = base.offset
        if ast.unparse(moved) != "0":
            added = ast.BinOp(left=total or ast.Constant(0), op=ast.Add(), right=moved)
            total = self._number(added)
        return View(
            root=base.root, size=self._numbers(size), stride=self._numbers(stride), offset=total
        )

    def _numbers(self, node: ast.expr) -> Sizes:
        return tuple(self._number(one) for one in _elements(node))

    def _number(self, node: ast.expr) -> ast.expr:
        """An expression of numbers, with the names of `call` replaced."""
        made = source.tidy(_Placed(self, None).visit(copy.deepcopy(node)))
        return source.InOrder([*self.labels.values()]).visit(made)


@dataclass(slots=True)
class _Placed(ast.NodeTransformer):
    """Replaces names of `call`: tensors by placeholders, numbers by their expressions."""

    reader: _CallReader
    tensors: list[View] | None
    """Tensors found; None where only numbers may stand."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if source.dotted(node.func) in ("reinterpret_tensor", "copy_if_misaligned"):
            return self._place(self.reader.value(node), node)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._place(value, node) if (value := self.reader.names.get(node.id)) else node

    def _place(self, value: Value, node: ast.expr) -> ast.expr:
        if not isinstance(value, View):
            return copy.deepcopy(value)
        if self.tensors is None:
            if value.root.is_input and value.size is None:
                return copy.deepcopy(value.root.expr)
            _unknown(node)
        self.tensors.append(value)
        return source.named(str(len(self.tensors) - 1))


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List) else [node]


def _unknown(node: ast.AST) -> NoReturn:
    """Refuses a statement."""
    raise Unanswered("unknown statement", ast.unparse(node).splitlines()[0][:100])


def _counterpart(made: ast.Call) -> ast.Call:
    """An operation that no kernel does, as torch has it. Raises Unanswered."""
    name = source.dotted(made.func)
    if any(part in name for part in DRAWS):
        raise Unanswered("random", name)
    if not name.startswith("torch.ops.aten."):
        raise Unanswered("unknown operation", name)
    return made


def _blocks(kernel: source.GeneratedKernel, numel: ast.expr) -> dict[str, int]:
    """Block sizes by the names of constexprs. Raises Unanswered."""
    if kernel.kind == "reduction":
        rows, columns = (NEIGHBOURS, NEIGHBOURS) if kernel.is_outer else (1, ROW_BLOCK)
        return {"XBLOCK": rows, "R0_BLOCK": columns}
    if kernel.kind != "pointwise":
        raise Unanswered("unknown heuristic", kernel.kind)
    number = numel.value if isinstance(numel, ast.Constant) else POINTWISE_BLOCK
    assert isinstance(number, int)
    return {"XBLOCK": min(POINTWISE_BLOCK, 1 << max(number - 1, 0).bit_length())}


def _ceil(numel: ast.expr, block: int) -> ast.expr:
    match numel:
        case _ if block == 1:
            return numel
        case ast.Constant(value=int(number)) if number <= block:
            return ast.Constant(min(number, 1))
        case _:
            return source.called("triton.cdiv", [numel, ast.Constant(block)])
