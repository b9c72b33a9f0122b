"""Marks each value of Inductor's code with the line of the problem that computes it: `#@12` behind
its statement. `rewrite` puts the line's text above it, so that the answer's steps are those of
forward, in their order.

The tracer finds the line in the stack of the call. It is kept as the stack trace of the node, which
Inductor copies from graph to graph; as a mark of the operations while the function of a loop's body
runs; and as a comment when one of them becomes a statement.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

from torch._inductor import ir
from torch._inductor.codegen.common import CSE
from torch._inductor.loop_body import LightTracer
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import PythonKeyTracer

FILE = "<problem>"
"""Name of the file of a problem's code."""
MARK = "#@"
KEPT = re.compile(r"\bself\.(\w+)(?![\w.(\[])")
"""An attribute of a module that may be a number."""


def texts_of(problem: str, model: Any) -> dict[int, str]:
    """Simple statements of a problem by the numbers of their lines, each behind the number of its
    first; in Model the numbers that it keeps stand in place of their names: `12 x = x / 2.0`."""
    tree = ast.parse(problem)
    *_, inside = (x for x in tree.body if isinstance(x, ast.ClassDef) and x.name == "Model")
    found: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr):
            text = ast.get_source_segment(problem, node) or ""
            text = ast.unparse(node) if "\n" in text else text
            if inside.lineno < node.lineno <= (inside.end_lineno or 0):
                text = KEPT.sub(partial(_number, model), text)
            _, _, before = found.get(node.lineno, "").partition(" ")  # of the same line
            text = f"{node.lineno} {f'{before}; ' * bool(before)}{text}"
            found |= dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), text)
    return found


def _number(model: Any, name: re.Match[str]) -> str:
    value = vars(model).get(name[1])
    return repr(value) if isinstance(value, int | float | tuple) else name[0]


def line_of(node: Any) -> int:
    """The line of the problem that a node of a graph is of; 0 if it is of none."""
    mark = getattr(node, "stack_trace", None) or ""
    return int(mark.removeprefix(MARK)) if mark.startswith(MARK) else 0


def marks(stack: contextlib.ExitStack) -> None:
    """Marks nodes and statements until the stack is left."""
    now: list[int] = []

    @contextlib.contextmanager
    def within(line: int) -> Iterator[None]:
        now.append(line)
        try:
            yield
        finally:
            now.pop()

    def traced(own: Callable[..., Any], self: Any, *args: Any, **options: Any) -> Any:
        node, frame = own(self, *args, **options), sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != FILE:
            frame = frame.f_back
        if frame is not None:
            node.stack_trace = f"{MARK}{frame.f_lineno}"
        return node

    def made(own: Callable[..., Any], self: Any) -> None:
        own(self)
        line, inner = line_of(getattr(V.graph, "current_node", None)), self.inner_fn

        def marked(*args: Any) -> Any:
            with within(line):
                return inner(*args)

        self._post_init_setattr("inner_fn", marked)
        self._post_init_setattr("line", line)

    def stored(own: Callable[..., Any], self: Any, *args: Any, **options: Any) -> Any:
        with within(self.line):
            return own(self, *args, **options)

    def noted(own: Callable[..., Any], self: Any, *args: Any, **options: Any) -> Any:
        node = own(self, *args, **options)
        node.meta["line"] = now[-1] if now else 0
        return node

    def written(own: Callable[..., Any], self: Any, *args: Any, **options: Any) -> Any:
        node = getattr(V.interpreter, "current_node", None)
        line = node.meta.get("line") if node is not None else 0
        with mock.patch.object(self, "suffix", f"  {MARK}{line}" if line else self.suffix):
            return own(self, *args, **options)

    for owner, name, ours in (
        (PythonKeyTracer, "create_node", traced), (ir.Loops, "__post_init__", made),
        (ir.Pointwise, "store_output", stored), (ir.Reduction, "store_reduction", stored),
        (ir.Scan, "store_reduction", stored), (LightTracer, "create_node", noted),
        (CSE, "generate", written),
    ):  # fmt: skip
        stack.enter_context(mock.patch.object(owner, name, _method(ours, getattr(owner, name))))


def _method(ours: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """A method that gets the one it replaces as its first argument."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        return ours(own, self, *args, **options)

    return method
