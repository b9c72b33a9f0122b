"""Reads the body of `call` as steps, and the entry's forward with these steps in place.

Every statement has one of a closed set of forms. What guards, synchronises or frees is left out;
names of buffers that stand for the same memory become one.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.data.inductor.expressions import Maxed, Substituted, tidy
from forge.data.inductor.launches import read_launch
from forge.data.inductor.outcome import NotRewritten, RewriteReason
from forge.data.inductor.source import (
    Transformer,
    calls_of,
    copied,
    dotted,
    forward_of,
    literal,
    walk,
)
from forge.data.inductor.steps import (
    Allocate,
    Compute,
    Number,
    Root,
    Step,
    Value,
    View,
    counterpart,
    is_contiguous,
    unknown,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.data.inductor.source import GeneratedAnswer, GeneratedKernel

IGNORED = frozenset({
    *("assert_size_stride", "assert_alignment", "get_raw_stream", "args.clear"),
    *("torch.cuda.set_device", "torch.cuda.synchronize", "start_graph", "end_graph"),
})  # fmt: skip
"""Calls that guard or synchronise."""

GUARDS = ("torch.cuda._DeviceGuard", "torch.cuda.device")
EMPTY = ("empty_strided_cuda", "empty_strided", "torch.empty_strided")


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
        if self.returned is None:
            raise NotRewritten(RewriteReason.UNKNOWN_STATEMENT, "call returns nothing")
        return self.returned

    def _read_all(
        self, body: Sequence[ast.stmt], parameter: str, given: list[ast.expr], asserted: _Asserted
    ) -> None:
        for node in body:
            match node:
                case ast.Assign(targets=[target], value=ast.Name(id=name)) if name == parameter:
                    self._bind(target, given, asserted)
                case ast.With(items=[ast.withitem(context_expr=ast.Call() as guard)]) if (
                    dotted(guard.func) in GUARDS
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
            raise NotRewritten(
                RewriteReason.UNKNOWN_STATEMENT,
                f"call takes {len(names)} values, gets {len(given)}",
            )
        for name, expr in zip(names, given, strict=True):
            is_number = isinstance(expr, ast.Constant)
            self.names[name] = expr if is_number else View(root=Root(expr=expr, is_input=True))

    def _note_sizes(self, root: Root, size: ast.expr, stride: ast.expr) -> None:
        if root.size is None:
            root.size = tuple(self._number(one) for one in _elements(size))
            root.stride = tuple(self._number(one) for one in _elements(stride))

    def _assign(self, name: str, value: ast.expr, asserted: _Asserted) -> None:
        match value:
            case ast.Call(func=function, args=[_, *_]) if dotted(function) in EMPTY:
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
            case _ if name in self.labels:
                self._number_step(name, self._number(value))
            case ast.Call() if dotted(value.func) in ("copy_if_misaligned", "reinterpret_tensor"):
                self.names[name] = self.value(value)
            case ast.Call() if dotted(value.func).rpartition(".")[2] in IGNORED:
                pass
            case ast.Call(func=function) if (
                dotted(function) == "torch._C._cuda_getCurrentRawStream"
            ):
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
        if launch := read_launch(made, self.kernels, self.value):
            for value in launch.arguments.values():
                if isinstance(value, View):
                    value.root.is_used = True
            self.steps.append(launch)
            return
        self._compute(made, None)

    def _compute(self, value: ast.expr, result: Root | None) -> None:
        """An operation of torch, whose result may be a buffer that it is given as `out`."""
        tensors: list[View] = []
        written: tuple[Root, ...] = ()
        expr = value
        if isinstance(value, ast.Call):
            expr = counterpart(value)
            out = next((one for one in expr.keywords if one.arg == "out"), None)
            if out is not None:
                target = self.value(out.value)
                if not isinstance(target, View):
                    unknown(value)
                if result is None and self._is_fresh(target):
                    result = target.root
                    self.steps = [one for one in self.steps if not _allocates(one, result)]
                    expr.keywords.remove(out)
                else:
                    written = (target.root,)
            elif result is None:
                unknown(value)
        elif not (isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant)):
            unknown(value)
        expr = _Placed(self, tensors).visit(copied(expr))
        for one in tensors:
            one.root.is_used = True
        if result is not None:
            result.is_used = True
        self.steps.append(Compute(call=expr, tensors=tensors, result=result, written=written))

    def _is_fresh(self, target: View) -> bool:
        """True for a whole buffer that nothing has touched, so that a new tensor may replace it."""
        root = target.root
        is_whole = target.size is None or ast.dump(target.write()) == ast.dump(root.expr)
        is_plain = is_contiguous(root.size, root.stride) and target.offset is None
        return is_whole and is_plain and not root.is_used and not root.is_input

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
        made = tidy(Maxed().visit(_Placed(self, None).visit(copied(node))))
        assert isinstance(made, ast.expr)
        return made


_Asserted = dict[str, tuple[ast.expr, ast.expr]]


@dataclass(slots=True)
class _Placed(Transformer):
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
            return copied(value)
        if self.tensors is None:
            if value.root.is_input and value.size is None:
                return copied(value.root.expr)
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


def _allocates(step: Step, root: Root) -> bool:
    return isinstance(step, Allocate) and step.root is root


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
    answer: GeneratedAnswer, kernels: dict[str, GeneratedKernel], labels: dict[str, str]
) -> Forward:
    """The steps of the entry's forward, that of `call` in place. Raises NotRewritten."""
    forward = forward_of(answer.entry)
    assert forward is not None
    reader = _Forward(CallReader(kernels, labels))
    for node in forward.body:
        reader.read(node, answer.call)
    if reader.result is None:
        raise NotRewritten(RewriteReason.UNKNOWN_STATEMENT, "forward returns nothing")
    return Forward(
        steps=reader.steps.steps,
        result=reader.result,
        outputs=reader.outputs,
        device=_device(reader.steps),
        inputs=[one.root for one in _views(reader.steps) if one.root.is_input],
        taken={one.arg for one in walk(forward) if isinstance(one, ast.arg)},
    )


def _views(steps: CallReader) -> list[View]:
    return [one for one in steps.names.values() if isinstance(one, View)]


def _device(steps: CallReader) -> ast.expr:
    """The device of the first tensor of forward, or of a parameter."""
    given = [one.root for one in _views(steps)]
    tensors = [one.expr for one in given if one.is_input and one.size is not None]
    chosen = next((one for one in tensors if isinstance(one, ast.Name)), None)
    chosen = chosen or next(iter(tensors), None)
    if chosen is None:
        return ast.Constant("cuda")
    return ast.Attribute(value=copied(chosen), attr="device", ctx=ast.Load())


@dataclass(slots=True)
class _Forward:
    """Reads the entry's forward."""

    steps: CallReader
    known: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    returned: list[Value] = field(default_factory=list[Value])
    output: str = ""
    """Name of the list that `call` returned."""
    outputs: list[View] = field(default_factory=list[View])
    result: ast.expr | None = None

    def read(self, node: ast.stmt, call: ast.FunctionDef) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as made) if (
                dotted(made.func) == "call"
            ):
                self.output = name
                self.returned = self._run(made, call)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_chain(value):
                self.known[name] = self._with_known(value)
            case ast.Return(value=ast.expr() as value):
                self.result = self._result(value, call)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case _:
                unknown(node)

    def _run(self, made: ast.Call, call: ast.FunctionDef) -> list[Value]:
        match made:
            case ast.Call(args=[ast.List(elts=given)], keywords=[]) if not self.returned:
                return self.steps.run(call, [self._with_known(one) for one in given])
            case _:
                unknown(made)

    def _result(self, value: ast.expr, call: ast.FunctionDef) -> ast.expr:
        """The returned expression: elements of what `call` returned, alone or in a tuple."""
        match value:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                made = [self._result(one, call) for one in parts]
                kind = ast.Tuple if isinstance(value, ast.Tuple) else ast.List
                return kind(elts=made, ctx=ast.Load())
            case ast.Subscript(value=ast.Name(id=name), slice=index) if name == self.output:
                return self._output(literal(index, None), value)
            case ast.Subscript(value=ast.Call() as made, slice=index) if (
                dotted(made.func) == "call"
            ):
                self.returned = self._run(made, call)
                return self._output(literal(index, None), value)
            case ast.Name(id=name) if name == self.output and self.returned:
                places = range(len(self.returned))
                every = [self._output(place, value) for place in places]
                return ast.Tuple(elts=every, ctx=ast.Load())
            case _ if _is_chain(value):
                return self._with_known(value)
            case _:
                unknown(value)

    def _output(self, place: object, node: ast.expr) -> ast.expr:
        if not isinstance(place, int) or not 0 <= place < len(self.returned):
            unknown(node)
        value = self.returned[place]
        if isinstance(value, View):
            self.outputs.append(value)
            return ast.Name(id=str(len(self.outputs) - 1), ctx=ast.Load())
        return value

    def _with_known(self, node: ast.expr) -> ast.expr:
        for one in walk(node):
            if isinstance(one, ast.Name) and one.id in self.known:
                return Substituted(self.known).visit(copied(node))
        return node


def _is_chain(node: ast.expr) -> bool:
    """True for names with attributes and constant subscripts, and for constants."""
    match node:
        case ast.Name() | ast.Constant():
            return True
        case ast.Attribute(value=owner):
            return _is_chain(owner)
        case ast.Subscript(value=owner, slice=ast.Constant()):
            return _is_chain(owner)
        case _:
            return False
