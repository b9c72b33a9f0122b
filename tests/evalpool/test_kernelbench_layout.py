"""Problems from a directory in KernelBench's layout, made small by overrides, and honest kernels
for them: nothing in the judge knows whose files they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forge.config.schema import ProblemsTable
from forge.data.problems import load_problems
from forge.records import Status

if TYPE_CHECKING:
    from pathlib import Path

    from forge.records import Problem

SUM = '''import torch
import torch.nn as nn

class Model(nn.Module):
    """A reduction over one dimension that `__init__` is given."""
    def __init__(self, dim: int):
        super(Model, self).__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sum(x, dim=self.dim, keepdim=True)

batch_size = 128
dim1 = 4096
dim2 = 4095
reduce_dim = 1

def get_inputs():
    x = torch.rand(batch_size, dim1, dim2)
    return [x]

def get_init_inputs():
    return [reduce_dim]'''

LINEAR = '''import torch
import torch.nn as nn

class Model(nn.Module):
    """A layer with weights of its own, then an activation."""
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return torch.relu(self.linear(x))

batch_size, in_features, out_features = 1024, 8192, 8192

def get_inputs():
    return [torch.randn(batch_size, in_features)]

def get_init_inputs():
    return [in_features, out_features]
'''

HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"
ANSWERS = {
    "level1/47_Sum": """
@triton.jit
def column_sums(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    j = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(rows):
        at = tl.program_id(0) * rows * columns + i * columns + j
        total += tl.load(x_ptr + at, mask=j < columns, other=0.0)
    tl.store(y_ptr + tl.program_id(0) * columns + j, total, mask=j < columns)

class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        assert dim == 1

    def forward(self, x):
        batch, rows, columns = x.shape
        y = x.new_empty(batch, 1, columns)
        column_sums[(batch,)](x, y, rows, columns, BLOCK=triton.next_power_of_2(columns))
        return y
""",
    "level2/1_Linear_ReLU": """
@triton.jit
def row(x_ptr, w_ptr, b_ptr, y_ptr, k, n, K: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, K), tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * k + i, mask=i < k, other=0.0)
    inside = (j[:, None] < n) & (i[None, :] < k)
    w = tl.load(w_ptr + j[:, None] * k + i[None, :], mask=inside, other=0.0)
    y = tl.sum(w * x[None, :], axis=1) + tl.load(b_ptr + j, mask=j < n, other=0.0)
    tl.store(y_ptr + tl.program_id(0) * n + j, tl.maximum(y, 0.0), mask=j < n)

class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        m, k = x.shape
        w = self.linear.weight
        y = x.new_empty(m, w.shape[0])
        sizes = {"K": triton.next_power_of_2(k), "N": triton.next_power_of_2(w.shape[0])}
        row[(m,)](x, w, self.linear.bias, y, k, w.shape[0], **sizes)
        return y
""",
}
WRONG = {
    "level1/47_Sum": ("for i in range(rows)", "for i in range(rows - 1)"),
    "level2/1_Linear_ReLU": ("tl.maximum(y, 0.0)", "tl.maximum(y, 0.1)"),
}
OVERRIDES = {
    "batch_size": 4, "dim1": 6, "dim2": 20, "in_features": 24, "out_features": 10,
}  # fmt: skip


@pytest.fixture
def problems(tmp_path: Path) -> dict[str, Problem]:
    sources = {"level1/47_Sum": SUM, "level2/1_Linear_ReLU": LINEAR}
    for name, source in sources.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    table = ProblemsTable(source="dir", path=tmp_path, overrides={**OVERRIDES})
    return {problem.problem_id: problem for problem in load_problems(table, seed=0)}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_honest_kernel_is_correct_and_one_with_a_slip_is_not(
    bench: Any, problems: dict[str, Problem], name: str
) -> None:
    source, honest = problems[name].source, HEAD + ANSWERS[name]
    verdict = bench.judge(honest, problem=source)
    assert verdict.status is Status.CORRECT, verdict.detail
    right, wrong = WRONG[name]
    assert right in honest
    assert bench.judge(honest.replace(right, wrong), problem=source).status is Status.WRONG


def test_constructor_arguments_may_be_kernelbooks_pair_of_positional_and_named_ones(
    bench: Any, problems: dict[str, Problem]
) -> None:
    plain = problems["level2/1_Linear_ReLU"].source
    source = plain.replace(
        "return [in_features, out_features]",
        'return [[in_features], {"out_features": out_features}]',
    )
    assert source != plain
    verdict = bench.judge(HEAD + ANSWERS["level2/1_Linear_ReLU"], problem=source)
    assert verdict.status is Status.CORRECT, verdict.detail
