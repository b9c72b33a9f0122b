"""A problem whose entry point is a function is answered by a class or a function of that name."""

from dataclasses import replace
from typing import Any

import pytest

from forge.data.answers import extract
from forge.records.problem import Problem, Split
from forge.records.verdict import Status

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
HEAD = """
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
FUNCTION = f"{HEAD}\ndef doubledNew(x):{BODY}"
METHOD = BODY.replace("\n", "\n    ")
CLASS = f"{HEAD}\nclass doubledNew(torch.nn.Module):\n    def forward(self, x):{METHOD}"


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
