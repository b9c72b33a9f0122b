# pyright: strict
"""The canary: a kernel known to be right and one known to be wrong.

`keeper.py` has both judged, at once, before a suspect judge takes its next candidate, and
before verdicts that follow a fault on a card are accepted. Promise: a judge passes only if it finds
the first kernel correct and the second wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from forge.records.problem import ReferenceModule
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
PROBLEM = ReferenceModule(problem_id="canary", source=SOURCE)


async def find_fault(ask: Callable[[ReferenceModule, str], Awaitable[Verdict]]) -> str | None:
    """None if both kernels are judged correctly; else a message that says what was found.

    Raises the error of `ask`, unless the other kernel was misjudged.
    """
    faults, errors = list[str](), list[Exception]()

    async def judge(code: str, name: str, expected: Status) -> None:
        try:
            verdict = await ask(PROBLEM, code)
        except Exception as error:  # raised below, outside the task group
            errors.append(error)
            return
        if verdict.status is not expected:
            found = f"{verdict.status} ({verdict.reason}) {verdict.detail[:200]}".strip()
            faults.append(f"a kernel known to be {name} was judged {found}")

    async with anyio.create_task_group() as tg:
        tg.start_soon(judge, RIGHT, "right", Status.CORRECT)
        tg.start_soon(judge, WRONG, "wrong", Status.WRONG)
    if errors and not faults:
        raise errors[0]
    return "; ".join(faults) or None
