"""Answers to KernelBench's problems, most of which leave work to torch.

    python -m bench.kernelbench_answers ~/KernelBench OUT [--cap 8]
    forge judge OUT/problems OUT/answers --protocol kernelbench --also forge

`parts` puts a Triton kernel in the place of sums, products, quotients, ReLU, sigmoid and tanh of
any problem's forward, and leaves the rest to torch. `LINEAR` has answers to problems of level 2
that are a linear layer and what follows it: each `whole`, by one kernel, and with the `product` by
torch. The command writes those, the answers in parts and the problems of level 2; with `--cap` no
size in a problem is larger, so that a CPU can judge them.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
"""
POINTWISE = """
@triton.jit
def pointwise(a, b, out, n, OP: tl.constexpr, IS_TENSOR: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + at, mask=at < n)
    y = tl.load(b + at, mask=at < n) if IS_TENSOR else b
    if OP == "add":
        z = x + y
    elif OP == "sub":
        z = x - y
    elif OP == "mult":
        z = x * y
    elif OP == "div":
        z = x / y
    elif OP == "relu":
        z = tl.maximum(x, 0.0)
    elif OP == "sigmoid":
        z = tl.sigmoid(x)
    else:
        z = 2 * tl.sigmoid(2 * x) - 1
    tl.store(out + at, z, mask=at < n)

def by_kernel(op, a, b=0.0):
    if isinstance(b, torch.Tensor):
        a = a if isinstance(a, torch.Tensor) else torch.full_like(b, a)
        a, b = torch.broadcast_tensors(a, b)
        b = b.contiguous()
    a = a.contiguous()
    out = torch.empty_like(a)
    b = b if isinstance(b, torch.Tensor) else float(b)
    grid = (triton.cdiv(a.numel(), 8192),)
    pointwise[grid](a, b, out, a.numel(), op, isinstance(b, torch.Tensor), BLOCK=8192)
    return out
"""
EPILOGUE = """
@triton.jit
def epilogue(x, v, s, t):
    return {result}
"""
WHOLE = """
@triton.jit
def linear(x, w, b, v, out, M, N, K, s, t, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        is_row = (rows[:, None] < M) & (k[None, :] < K)
        is_weight = (k[:, None] < K) & (columns[None, :] < N)
        part = tl.load(x + rows[:, None] * K + k[None, :], mask=is_row, other=0.0)
        weight = tl.load(w + columns[None, :] * K + k[:, None], mask=is_weight, other=0.0)
        total += tl.dot(part, weight, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(b + columns, mask=columns < N, other=0.0)[None, :]
    added = tl.load(v + columns, mask=columns < N, other=0.0)[None, :]
    at = rows[:, None] * N + columns[None, :]
    is_in = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(out + at, epilogue(total, added, s, t), mask=is_in)

class ModelNew(nn.Module):
{init}
    def forward(self, x):
        layer = self.{layer}
        M, K = x.shape
        N = layer.weight.shape[0]
        out = torch.empty(M, N, device=x.device, dtype=x.dtype)
        bias = layer.weight if layer.bias is None else layer.bias
        v = {vector}
        grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
        linear[grid](x, layer.weight, bias, v, out, M, N, K, {scalars}, layer.bias is not None, 32)
        return out
"""
PRODUCT = """
@triton.jit
def follow(x, v, out, n, N, s, t, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_in = at < n
    added = tl.load(v + at % N, mask=is_in)
    tl.store(out + at, epilogue(tl.load(x + at, mask=is_in), added, s, t), mask=is_in)

class ModelNew(nn.Module):
{init}
    def forward(self, x):
        layer = self.{layer}
        x = F.linear(x, layer.weight, layer.bias)
        out = torch.empty_like(x)
        v = {vector}
        grid = (triton.cdiv(x.numel(), 8192),)
        follow[grid](x, v, out, x.numel(), x.shape[1], {scalars}, BLOCK=8192)
        return out
"""


class Linear(NamedTuple):
    """A problem that is a linear layer and pointwise operations."""

    layer: str
    result: str
    """Of `x`, the layer's output; `v`, a vector; `s` and `t`, numbers."""
    vector: str = ""
    scalars: tuple[str, ...] = ()


_MISH = "({0} * (2 * tl.sigmoid(2 * tl.log(1 + tl.exp({0}))) - 1))"
_TANH = "(2 * tl.sigmoid(2 * {0}) - 1)"
_GELU = "(0.5 * {0} * (1 + tl.erf({0} * 0.7071067811865476)))"
_SWISH = "((x + v) * tl.sigmoid(x + v))"
LINEAR: Mapping[int, Linear] = {
    9: Linear(
        "linear", "tl.maximum((x - s) * t, 0.0)", scalars=("subtract_value", "multiply_value")
    ),
    12: Linear(
        "gemm", "tl.where(x * s > 0, x * s, x * s * t)",
        scalars=("multiplier", "leaky_relu.negative_slope"),
    ),
    29: Linear("linear", _MISH.format(_MISH.format("x"))),
    40: Linear("matmul", "x * s + x", scalars=("scaling_factor",)),
    53: Linear(
        "gemm", _GELU.format("tl.minimum(tl.maximum(x * s, -2.0), 2.0)"),
        scalars=("scaling_factor",),
    ),
    59: Linear("matmul", "x * tl.sigmoid(x) * s", scalars=("scaling_factor",)),
    63: Linear("linear", "tl.maximum(x, 0.0) / s", scalars=("divisor",)),
    70: Linear("gemm", "tl.sigmoid(x) * s + x", scalars=("scaling_factor",)),
    76: Linear("gemm", "tl.maximum(x + v, 0.0)", vector="bias"),
    86: Linear("linear", _GELU.format("(x / s)"), scalars=("divisor",)),
    95: Linear(
        "matmul",
        f"tl.minimum(tl.maximum({_GELU.format(_TANH.format(_SWISH))}, -1.0), 1.0)",
        vector="add_value",
    ),
}  # fmt: skip
"""By the problem's number in level 2."""


def linear_answers(number: int, source: str) -> Iterator[tuple[str, str]]:
    """Kind and source of the answers to a problem of `LINEAR`."""
    about = LINEAR[number]
    (model,) = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef)]
    (init,) = [one for one in model.body if getattr(one, "name", "") == "__init__"]
    text = ast.unparse(init).replace("super(Model, self)", "super()")
    scalars = [f"self.{name}" for name in about.scalars] + ["0.0", "0.0"]
    values = {
        "layer": about.layer,
        "init": "\n".join(f"    {line}" for line in text.splitlines()),
        "vector": f"self.{about.vector}" if about.vector else "layer.weight",
        "scalars": ", ".join(scalars[:2]),
    }
    start = HEAD + EPILOGUE.format(result=about.result)
    for kind, body in (("whole", WHOLE), ("product", PRODUCT)):
        yield kind, start + body.format(**values)


OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mult", ast.Div: "div"}
CALLS = {"torch.relu": "relu", "F.relu": "relu", "torch.sigmoid": "sigmoid", "torch.tanh": "tanh"}


class _Parts(ast.NodeTransformer):
    """Gives pointwise operations of `forward` to a kernel, and the class its name."""

    num = 0

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if node.name != "Model":
            return node
        node.name = "ModelNew"
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "forward":
                self.generic_visit(method)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        op = OPERATORS.get(type(node.op))
        is_number = all(isinstance(one, ast.Constant) for one in (node.left, node.right))
        return node if op is None or is_number else self._by_kernel(op, node.left, node.right)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func).replace("torch.nn.functional.", "F.")
        is_plain = len(node.args) == 1 and not node.keywords
        return self._by_kernel(CALLS[name], *node.args) if name in CALLS and is_plain else node

    def _by_kernel(self, op: str, *arguments: ast.expr) -> ast.Call:
        self.num += 1
        return ast.Call(ast.Name("by_kernel"), [ast.Constant(op), *arguments], [])


def parts(source: str) -> str | None:
    """An answer whose kernel does some pointwise operations, and torch the rest; None without any
    that it can do."""
    change = _Parts()
    tree = ast.parse(source)
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef)]
    names = [change.visit(one) for one in classes]
    if not change.num:
        return None
    text = "\n\n".join(ast.unparse(ast.fix_missing_locations(one)) for one in names)
    return HEAD + POINTWISE + "\n" + text.replace("super(Model, self)", "super()") + "\n"


FIXED = (3, 34)
"""Problems of level 2 whose norm has the published width."""


def capped(source: str, cap: int) -> str:
    """A problem with no size above `cap` at its top level, four times that in a vector, which is
    normalised in groups, and a batch of four at most."""
    tree = ast.parse(source)
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            name = ast.unparse(statement.targets[0])
            most = 4 * cap if "features" in name or name.endswith("t_size") else cap
            most = 4 if name == "batch_size" else most
            for node in ast.walk(statement.value):
                if isinstance(node, ast.Constant) and type(node.value) is int:
                    node.value = min(node.value, most)
    return ast.unparse(tree) + "\n"


def problems(folder: Path, cap: int | None = None) -> Iterator[tuple[int, str, str]]:
    """Number, name and source of the problems of level 2 in a checkout."""
    for path in sorted(folder.glob("KernelBench/level2/*.py")):
        source, number = path.read_text(), int(path.name.partition("_")[0])
        if cap is None or number not in FIXED:
            yield number, path.stem, source if cap is None else capped(source, cap)


def answers(number: int, source: str) -> Iterator[tuple[str, str]]:
    """Kind and source of every answer to a problem of level 2."""
    if number in LINEAR:
        yield from linear_answers(number, source)
    if (code := parts(source)) is not None:
        yield "parts", code


def main() -> None:
    """Writes the problems and the answers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernelbench", type=Path, help="a checkout")
    parser.add_argument("out", type=Path)
    parser.add_argument("--cap", type=int, help="largest size in a problem")
    given = parser.parse_args()
    for name in ("problems", "answers"):
        (given.out / name).mkdir(parents=True, exist_ok=True)
    for number, name, source in problems(given.kernelbench, given.cap):
        (given.out / "problems" / f"{name}.py").write_text(source)
        for kind, code in answers(number, source):
            (given.out / "answers" / f"{number}_{kind}.py").write_text(code)


if __name__ == "__main__":
    main()
