"""Problems of others: a directory in KernelBench's layout, made small by overrides, and a problem
whose entry point is a function; nothing in the judge knows whose files they are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import ProblemsTable
from forge.data.answers import extract
from forge.data.problems import load_problems
from forge.records import Status
from forge.records.problem import Problem, Split
from tests.evalpool.benches import HEAD

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
ANSWER = f"""{HEAD}
import torch.nn as nn

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
        sizes = {{"K": triton.next_power_of_2(k), "N": triton.next_power_of_2(w.shape[0])}}
        row[(m,)](x, w, self.linear.bias, y, k, w.shape[0], **sizes)
        return y
"""
SIZES = "return [in_features, out_features]"


@pytest.mark.parametrize("sizes", [SIZES, 'return [[in_features], {"out_features": out_features}]'])
def test_an_honest_kernel_is_correct_and_one_with_a_slip_is_not(
    bench: Any, tmp_path: Path, sizes: str
) -> None:
    """Constructor arguments may be KernelBook's pair of positional and named ones."""
    assert SIZES in LINEAR
    (tmp_path / "level2").mkdir()
    (tmp_path / "level2" / "1_Linear_ReLU.py").write_text(LINEAR.replace(SIZES, sizes))
    overrides = {"batch_size": 4, "in_features": 24, "out_features": 10}
    table = ProblemsTable(source="dir", path=tmp_path, overrides={**overrides})
    (problem,) = load_problems(table, seed=0)
    assert problem.problem_id == "level2/1_Linear_ReLU"
    verdict = bench.judge(ANSWER, problem=problem.source)
    assert verdict.status is Status.CORRECT, verdict.detail
    wrong = ANSWER.replace("tl.maximum(y, 0.0)", "tl.maximum(y, 0.1)")
    assert bench.judge(wrong, problem=problem.source).status is Status.WRONG


DOUBLED = Problem(
    problem_id="doubled",
    source="""
import torch
def doubled(x):
    return x * 2
def get_inputs():
    return [torch.randn(16, 64)]
""",
    family="test",
    level=1,
    split=Split.GRPO,
    entry_point="doubled",
)
DOUBLING = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
"""
BODY = """
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
"""
FUNCTION = f"{DOUBLING}\ndef doubledNew(x):{BODY}"
METHOD = BODY.replace("\n", "\n    ")
CLASS = f"{DOUBLING}\nclass doubledNew(torch.nn.Module):\n    def forward(self, x):{METHOD}"


@pytest.mark.parametrize("answer", [FUNCTION, CLASS], ids=["function", "class"])
def test_a_function_is_answered_by_either(bench: Any, answer: str) -> None:
    found = extract(f"So:\n```python\n{answer}```", entry_point=DOUBLED.entry_point)
    verdict = bench.trials.judge(DOUBLED, found.code)
    assert verdict.status is Status.CORRECT, verdict.detail
    wrong = bench.trials.judge(DOUBLED, found.code.replace("* 2,", "* 3,"))
    assert wrong.reason == "mismatch"


def test_a_class_without_parameters_is_answered_by_a_function_too(bench: Any) -> None:
    source = DOUBLED.source.replace(
        "def doubled(x):", "class M(torch.nn.Module):\n  def forward(self, x):"
    )
    problem = replace(DOUBLED, source=f"{source}def get_init_inputs(): return []", entry_point="M")
    answer = FUNCTION.replace("doubledNew", "MNew")
    assert bench.trials.judge(problem, answer).status is Status.CORRECT
