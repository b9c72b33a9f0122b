"""Reads the entry's forward, with the steps of `call` in place."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.data.inductor.call import CallReader
from forge.data.inductor.operations import unknown
from forge.data.inductor.outcome import NotRewritten, RewriteReason
from forge.data.inductor.source import Transformer, copied, dotted, forward_of, literal, walk
from forge.data.inductor.steps import Step, Value
from forge.data.inductor.tensors import View

if TYPE_CHECKING:
    from forge.data.inductor.source import GeneratedAnswer, GeneratedKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """The steps of forward, and the value that it returns."""

    steps: list[Step]
    result: ast.expr
    """The returned expression; names like `0` in it stand for `outputs`."""
    outputs: list[View]
    device: ast.expr
    """The device of an input."""


def read_forward(answer: GeneratedAnswer, kernels: dict[str, GeneratedKernel]) -> Forward:
    """The steps of the entry's forward, that of `call` in place. Raises NotRewritten."""
    forward = forward_of(answer.entry)
    assert forward is not None
    reader = _Forward(CallReader(kernels))
    for node in forward.body:
        reader.read(node, answer.call)
    if reader.result is None:
        raise NotRewritten(RewriteReason.UNKNOWN_STATEMENT, "forward returns nothing")
    return Forward(
        steps=reader.steps.steps,
        result=reader.result,
        outputs=reader.outputs,
        device=_device(reader.steps),
    )


def _device(steps: CallReader) -> ast.expr:
    """The device of the first tensor of forward, or of a parameter."""
    given = [one.root for one in steps.names.values() if isinstance(one, View)]
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
                return _Replaced(self.known).visit(copied(node))
        return node


@dataclass(slots=True)
class _Replaced(Transformer):
    known: dict[str, ast.expr]

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copied(self.known[node.id]) if node.id in self.known else node


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
