"""A kernel that is known to be right and one that is known to be wrong.

Judged by `keeper.py` before a judge that came under suspicion takes its next candidate. Promise: a
judge passes only if it finds the first correct and the second wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.records.problem import Problem, Split
from forge.records.verdict import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forge.records.verdict import Verdict

SOURCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1

def get_inputs():
    return [torch.randn(8, 32)]

def get_init_inputs():
    return []
"""
RIGHT = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2 + 1, mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, x.numel(), BLOCK=256)
        return y
"""
WRONG = RIGHT.replace("* 2 + 1", "* 2 - 1")
PROBLEM = Problem(problem_id="canary", source=SOURCE, family="canary", level=0, split=Split.HELDOUT)


async def find_fault(ask: Callable[[Problem, str], Awaitable[Verdict]]) -> str | None:
    """None where both are judged as they must be; else what was found, for people."""
    for code, name, expected in ((RIGHT, "right", Status.CORRECT), (WRONG, "wrong", Status.WRONG)):
        verdict = await ask(PROBLEM, code)
        if verdict.status is not expected:
            found = f"{verdict.status} ({verdict.reason}) {verdict.detail[:200]}".strip()
            return f"a kernel known to be {name} was judged {found}"
    return None
