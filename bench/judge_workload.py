"""Problems for `bench/judge.py` in KernelBench's layout, with an honest kernel for each.

`quickstart` has generated problems; `full` has problems of KernelBench's level 1 (names and sizes
of commit 423217d), `small` the same problems at sizes for a CPU.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.config.schema import ProblemsTable
from forge.data.generator import answer, generate_problems
from forge.records.problem import Problem, Split

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"
MODEL = """
import torch
import torch.nn as nn

{constants}

class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, {names}):
        return {result}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""
ELEMENTWISE = """
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, {value}, mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 4096),)](x, y, x.numel(), BLOCK=4096)
        return y
"""
SOFTMAX = """
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * n
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(0, n, BLOCK):
        i = at + tl.arange(0, BLOCK)
        value = tl.load(x + start + i, mask=i < n, other=-1e30)
        higher = tl.maximum(top, value)
        total = total * tl.exp(top - higher) + tl.exp(value - higher)
        top = higher
    peak = tl.max(top, axis=0)
    scale = tl.sum(total * tl.exp(top - peak), axis=0)
    for at in range(0, n, BLOCK):
        i = at + tl.arange(0, BLOCK)
        value = tl.load(x + start + i, mask=i < n, other=0.0)
        tl.store(y + start + i, tl.exp(value - peak) / scale, mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=2048)
        return y
"""
MATMUL = """
@triton.jit
def kernel(a, b, c, n, BLOCK: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for at in range(0, n, STEP):
        k = at + tl.arange(0, STEP)
        left = tl.load(a + rows[:, None] * n + k[None, :])
        right = tl.load(b + k[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total)

class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        n = a.shape[0]
        c = torch.empty_like(a)
        kernel[(n // 64, n // 64)](a, b, c, n, BLOCK=64, STEP=32)
        return c
"""
RMS_NORM = """
@triton.jit
def kernel(x, y, features, size, BLOCK: tl.constexpr):
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * features * size
    total = tl.zeros([BLOCK], tl.float32)
    for feature in range(features):
        value = tl.load(x + start + feature * size + i, mask=i < size, other=0.0)
        total += value * value
    scale = tl.sqrt(total / features + 1e-5)
    for feature in range(features):
        value = tl.load(x + start + feature * size + i, mask=i < size, other=0.0)
        tl.store(y + start + feature * size + i, value / scale, mask=i < size)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        size = x.shape[2] * x.shape[3]
        kernel[(x.shape[0], triton.cdiv(size, 1024))](x, y, x.shape[1], size, BLOCK=1024)
        return y
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A problem and an honest answer to it."""

    problem: Problem
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Template:
    """A KernelBench problem with its size as a parameter."""

    result: str
    names: str
    inputs: str
    kernel: str
    small: Mapping[str, int]
    full: Mapping[str, int]


KERNELBENCH = {
    "19_ReLU": _Template(
        result="torch.relu(x)", names="x", inputs="torch.rand(batch_size, dim)",
        kernel=ELEMENTWISE.format(value="tl.maximum(value, 0.0)"),
        small={"batch_size": 16, "dim": 4096}, full={"batch_size": 4096, "dim": 393216},
    ),
    "21_Sigmoid": _Template(
        result="torch.sigmoid(x)", names="x", inputs="torch.rand(batch_size, dim)",
        kernel=ELEMENTWISE.format(value="tl.sigmoid(value)"),
        small={"batch_size": 16, "dim": 4096}, full={"batch_size": 4096, "dim": 393216},
    ),
    "23_Softmax": _Template(
        result="torch.softmax(x, dim=1)", names="x", inputs="torch.rand(batch_size, dim)",
        kernel=SOFTMAX,
        small={"batch_size": 16, "dim": 4096}, full={"batch_size": 4096, "dim": 393216},
    ),
    "1_Square_matrix_multiplication_": _Template(
        result="torch.matmul(a, b)", names="a, b", inputs="torch.rand(n, n), torch.rand(n, n)",
        kernel=MATMUL, small={"n": 128}, full={"n": 4096},
    ),
    "36_RMSNorm_": _Template(
        result="x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)", names="x",
        inputs="torch.rand(batch_size, features, dim1, dim2)", kernel=RMS_NORM,
        small={"batch_size": 4, "features": 16, "dim1": 32, "dim2": 32},
        full={"batch_size": 112, "features": 64, "dim1": 512, "dim2": 512},
    ),
}  # fmt: skip
SIZES = ("quickstart", "small", "full")


def tasks(size: str, *, num: int) -> list[Task]:
    """Tasks of a measurement, at least one per problem; `size` as in SIZES."""
    if size == "quickstart":
        table = ProblemsTable(sft_by_level=[200, 500, 400, 250])
        problems = [one for one in generate_problems(table, seed=0) if one.split is Split.GRPO]
        return [Task(problem=one, code=answer(one)) for one in problems[:num]]
    return [_task(name, template, size) for name, template in KERNELBENCH.items()]


def repeated(
    found: list[Task], *, num: int, siblings: int, faults: int = 0, is_cold: bool = False
) -> list[Task]:
    """`num` different candidates: `siblings` per problem, as in a group.

    A comment makes each unique, so that no verdict is cached; with `is_cold` its kernel has a name
    of its own too, so that no binary is. With `faults`, every `faults`-th writes out of bounds.
    """
    out: list[Task] = []
    while len(out) < num:
        task = found[len(out) // siblings % len(found)]
        if faults and len(out) % faults == faults - 1:
            task = _faulty(found[0])
        code = task.code
        if is_cold:
            name = f"kernel_{os.urandom(4).hex()}"
            code = code.replace("def kernel(", f"def {name}(").replace("kernel[", f"{name}[")
        out.append(Task(problem=task.problem, code=f"{code}\n# candidate {len(out)}\n"))
    return out


def _faulty(task: Task) -> Task:
    """Makes an elementwise kernel write far out of bounds."""
    honest, astray = "tl.store(y + i,", "tl.store(y + i * 100000,"
    if honest not in task.code:
        raise ValueError(f"{task.problem.problem_id} is no elementwise kernel")
    return Task(problem=task.problem, code=task.code.replace(honest, astray))


def _task(name: str, template: _Template, size: str) -> Task:
    values = template.small if size == "small" else template.full
    source = MODEL.format(
        constants="\n".join(f"{key} = {value}" for key, value in values.items()),
        names=template.names,
        result=template.result,
        inputs=template.inputs,
    )
    problem = Problem(
        problem_id=f"{name}-{size}", source=source, family="kernelbench", level=1, split=Split.GRPO
    )
    return Task(problem=problem, code=HEAD + template.kernel)
