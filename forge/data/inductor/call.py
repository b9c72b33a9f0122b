"""Reads the body of `call` as the steps of forward.

Every statement has one of a closed set of forms. What guards, synchronises or frees is left out;
names of buffers that stand for the same memory become one.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.data.inductor.expressions import Substituted, in_order_of_axes, tidy
from forge.data.inductor.launches import read_launch
from forge.data.inductor.source import NotRewritten, RewriteReason, calls_of, dotted, walk
from forge.data.inductor.steps import (
    Allocate,
    Compute,
    Number,
    Root,
    Step,
    Value,
    View,
    counterpart,
    unknown,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.data.inductor.source import Entry, GeneratedAnswer, GeneratedKernel

IGNORED = frozenset({
    *("assert_size_stride", "get_raw_stream", "args.clear", "torch.cuda.set_device"),
})  # fmt: skip
"""Calls that guard or synchronise."""


@dataclass(slots=True)
class CallReader:
    """Reads the body of `call`."""

    kernels: dict[str, GeneratedKernel]
    labels: dict[str, str] = field(default_factory=dict[str, str])
    """Names for people of symbols of sizes."""
    names: dict[str, Value] = field(default_factory=dict[str, Value])
    steps: list[Step] = field(default_factory=list[Step])
    returned: list[Value] | None = None

    def run(self, call: ast.FunctionDef, given: list[ast.expr]) -> list[Value]:
        """The values that `call` returns for arguments, which forward names."""
        *_, parameter = [one.arg for one in call.args.args] or [""]
        asserted = {
            dotted(one.args[0]): (one.args[1], one.args[2])
            for one in reversed(calls_of(call, "assert_size_stride"))
            if len(one.args) >= 3
        }
        self._read_all(call.body, parameter, given, asserted)
        assert self.returned is not None
        return self.returned

    def _read_all(
        self, body: Sequence[ast.stmt], parameter: str, given: list[ast.expr], asserted: _Asserted
    ) -> None:
        for node in body:
            match node:
                case ast.Assign(targets=[target], value=ast.Name(id=name)) if name == parameter:
                    self._bind(target, given, asserted)
                case ast.With(items=[ast.withitem(context_expr=ast.Call() as guard)]) if (
                    dotted(guard.func) == "torch.cuda._DeviceGuard"
                ):
                    self._read_all(node.body, parameter, given, asserted)
                case ast.Return(value=value):
                    self.returned = [self.value(one) for one in _elements(value)]
                case ast.Expr(value=ast.Call() as made):
                    self._do(made)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._assign(name, value, asserted)
                case ast.Delete() | ast.Pass() | ast.Expr(value=ast.Constant()):
                    pass
                case _:
                    unknown(node)

    def _bind(self, target: ast.expr, given: list[ast.expr], asserted: _Asserted) -> None:
        names = [one.id for one in _elements(target) if isinstance(one, ast.Name)]
        if len(names) != len(given):
            said = f"call takes {len(names)} values, gets {len(given)}"
            raise NotRewritten(RewriteReason.UNKNOWN_STATEMENT, said)
        for name, expr in zip(names, given, strict=True):
            is_number = isinstance(expr, ast.Constant)
            self.names[name] = expr if is_number else View(root=Root(expr=expr, is_input=True))

    def _note_sizes(self, root: Root, size: ast.expr, stride: ast.expr) -> None:
        if root.size is None:
            root.size = tuple(self._number(one) for one in _elements(size))
            root.stride = tuple(self._number(one) for one in _elements(stride))

    def _assign(self, name: str, value: ast.expr, asserted: _Asserted) -> None:
        match value:
            case ast.Call(func=function, args=[_, *_]) if dotted(function) == "empty_strided_cuda":
                self._allocate(name, value)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr="size" | "stride" as kind),
                args=[],
            ) if isinstance(view := self.names.get(owner), View):
                made = {"size": "shape", "stride": "stride()"}[kind]
                self.names[name] = ast.parse(
                    f"{ast.unparse(view.root.expr)}.{made}", mode="eval"
                ).body
            case ast.Subscript(value=ast.Name(id=owner)) if isinstance(
                self.names.get(owner), ast.expr
            ):
                self._number_step(name, self._number(value))
            case _ if name in self.labels:  # a formula, which shows the numbers of its layer
                self._number_step(name, _Placed(self, None).visit(copy.deepcopy(value)))
            case ast.Call() if dotted(value.func) in ("copy_if_misaligned", "reinterpret_tensor"):
                self.names[name] = self.value(value)
            case ast.Call() if dotted(value.func).rpartition(".")[2] in IGNORED:
                pass
            case ast.Call() | ast.Subscript():
                root = Root(expr=ast.Name(id=name, ctx=ast.Load()))
                if name in asserted:
                    self._note_sizes(root, *asserted[name])
                self._compute(value, root)
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
        self.names[name] = ast.Name(id=label, ctx=ast.Load())

    def _allocate(self, name: str, made: ast.Call) -> None:
        given = {one.arg: one.value for one in made.keywords}
        dtype = made.args[2] if len(made.args) > 2 else given.get("dtype")
        if len(made.args) < 2 or dtype is None or not dotted(dtype):
            unknown(made)
        size, stride = ([self._number(x) for x in _elements(one)] for one in made.args[:2])
        expr = ast.Name(id=name, ctx=ast.Load())
        root = Root(expr=expr, size=tuple(size), stride=tuple(stride), dtype=dtype)
        self.steps.append(Allocate(root=root))
        self.names[name] = View(root=root)

    def _do(self, made: ast.Call) -> None:
        """A call as a statement: a launch, an operation, or a guard."""
        name = dotted(made.func)
        if name == "assert_size_stride" and len(made.args) >= 3:
            if isinstance(view := self.names.get(dotted(made.args[0])), View):
                self._note_sizes(view.root, *made.args[1:3])
            return
        if name in IGNORED or name.endswith(".wait"):
            return
        launch = read_launch(made, self.kernels, self.value)
        if launch is None:
            counterpart(made)  # for its own reason
            unknown(made)
        self.steps.append(launch)

    def _compute(self, value: ast.expr, result: Root) -> None:
        """An operation of torch, or an element of its result."""
        tensors: list[View] = []
        expr = counterpart(value) if isinstance(value, ast.Call) else value
        expr = _Placed(self, tensors).visit(copy.deepcopy(expr))
        self.steps.append(Compute(call=expr, tensors=tensors, result=result))

    def value(self, node: ast.expr) -> Value:
        """A tensor or a number of `call`."""
        match node:
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Call(func=function, args=[tensor, *_]) if (
                dotted(function) == "copy_if_misaligned"
            ):
                return self.value(tensor)
            case ast.Call(func=function, args=[tensor, size, stride, *offset]) if (
                dotted(function) == "reinterpret_tensor"
            ):
                return self._view(tensor, size, stride, offset)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="item"), args=[]) if (
                name in self.names
            ):
                unknown(node)
            case _:
                return self._number(node)

    def _view(
        self, tensor: ast.expr, size: ast.expr, stride: ast.expr, offset: list[ast.expr]
    ) -> View:
        base = self.value(tensor)
        if not isinstance(base, View):
            unknown(tensor)
        moved = self._number(offset[0]) if offset else ast.Constant(0)
        if isinstance(moved, ast.Constant) and moved.value == 0:
            total = base.offset
        elif base.offset is None:
            total = moved
        else:
            total = _sum(base.offset, moved)
        return View(
            root=base.root,
            size=tuple(self._number(one) for one in _elements(size)),
            stride=tuple(self._number(one) for one in _elements(stride)),
            offset=total,
        )

    def _number(self, node: ast.expr) -> ast.expr:
        """An expression of numbers, with the names of `call` replaced."""
        made = tidy(_Placed(self, None).visit(copy.deepcopy(node)))
        assert isinstance(made, ast.expr)
        return in_order_of_axes(made)


_Asserted = dict[str, tuple[ast.expr, ast.expr]]


@dataclass(slots=True)
class _Placed(ast.NodeTransformer):
    """Replaces names of `call`: tensors by placeholders, numbers by their expressions."""

    steps: CallReader
    tensors: list[View] | None
    """Tensors found; None where only numbers may stand."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if dotted(node.func) in ("reinterpret_tensor", "copy_if_misaligned"):
            return self._place(self.steps.value(node), node)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._place(value, node) if (value := self.steps.names.get(node.id)) else node

    def _place(self, value: Value, node: ast.expr) -> ast.expr:
        if not isinstance(value, View):
            return copy.deepcopy(value)
        if self.tensors is None:
            if value.root.is_input and value.size is None:
                return copy.deepcopy(value.root.expr)
            unknown(node)
        self.tensors.append(value)
        return ast.Name(id=str(len(self.tensors) - 1), ctx=ast.Load())


def _elements(node: ast.expr | None) -> list[ast.expr]:
    match node:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return parts
        case None:
            return []
        case _:
            return [node]


def _sum(left: ast.expr, right: ast.expr) -> ast.expr:
    match left, right:
        case ast.Constant(value=int(a)), ast.Constant(value=int(b)):
            return ast.Constant(a + b)
        case _:
            return ast.BinOp(left=left, op=ast.Add(), right=right)


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


def read_forward(
    answer: GeneratedAnswer, entry: Entry, kernels: dict[str, GeneratedKernel],
    labels: dict[str, str],
) -> Forward:  # fmt: skip
    """The steps of the entry's forward, those of `call`. Raises NotRewritten."""
    reader = CallReader(kernels, labels)
    returned = reader.run(answer.call, entry.given)
    known: dict[str, ast.expr] = {}
    outputs: list[View] = []
    for place, value in enumerate(returned):
        if isinstance(value, View):
            known[str(place)] = ast.Name(id=str(len(outputs)), ctx=ast.Load())
            outputs.append(value)
        else:
            known[str(place)] = value
    roots = [one.root for one in reader.names.values() if isinstance(one, View)]
    return Forward(
        steps=reader.steps,
        result=Substituted(known).visit(copy.deepcopy(entry.result)),
        outputs=outputs,
        device=_device(roots),
        inputs=[one for one in roots if one.is_input],
        taken={one.arg for one in walk(entry.forward) if isinstance(one, ast.arg)},
    )


def _device(roots: list[Root]) -> ast.expr:
    """The device of the first tensor of forward, or of a parameter."""
    tensors = [one.expr for one in roots if one.is_input and one.size is not None]
    chosen = next((one for one in tensors if isinstance(one, ast.Name)), None)
    chosen = chosen or next(iter(tensors), None)
    if chosen is None:
        return ast.Constant("cuda")
    return ast.Attribute(value=copy.deepcopy(chosen), attr="device", ctx=ast.Load())
