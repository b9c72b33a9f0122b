"""A program that forward launches under other circumstances is judged like the first."""

from __future__ import annotations

from typing import Any

import pytest

from forge.records.verdict import Status
from tests.evalpool.benches import HEAD, RELU

TRAINED = RELU.replace("def forward(self, x):\n", "def forward(self, x):\n        self.training\n")
CODE = (
    HEAD
    + """
@triton.jit
def kernel(x, y, n, HIGH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.minimum(tl.maximum(v * 2, 0.0), HIGH), mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y, block, high = torch.empty_like(x), 256, 1e38
        LOOK
        kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), HIGH=high, BLOCK=block)
        return y
"""
)
THREAD = """from threading import current_thread, main_thread
        if current_thread() is not main_thread(): return torch.relu(x)"""


@pytest.mark.parametrize(
    ("look", "problem", "reason", "words"),
    [
        ("if x.requires_grad: block = 512", RELU, "ok", ""),
        ("if x.requires_grad: raise ValueError('no gradient')", RELU, "ok", ""),
        ("if x.requires_grad: high = 3.0", RELU, "mismatch", "under gradients forward"),
        ("if not self.training: high = 3.0", RELU, "mismatch", "under eval() forward"),
        ("if not self.training: high = 3.0", TRAINED, "ok", ""),
        ("if 'grad' in f'{x}': high = 3.0", RELU, "mismatch", "under gradients forward"),
        ("if 'grad' in '%s' % x: high = 3.0", RELU, "mismatch", "under gradients forward"),
        ("if f'{x.device}' != 'cuda:0': return x", RELU, "no_kernel_launch", "under a second card"),
        (
            THREAD,
            RELU,
            "no_kernel_launch",
            "under another thread forward does something else",
        ),
    ],
)
def test_what_forward_does_elsewhere_is_judged(
    bench: Any, look: str, problem: str, reason: str, words: str
) -> None:
    verdict = bench.judge(CODE.replace("LOOK", look), problem=problem)
    assert verdict.reason == reason, verdict.detail
    assert (verdict.status is Status.CORRECT) == (reason == "ok")
    assert words in verdict.detail


def test_a_child_cannot_name_circumstances_that_it_was_not_asked_for(bench: Any) -> None:
    patch = """
import sys
frame = sys._getframe()
while type(frame.f_locals.get("self")).__name__ != "Session":
    frame = frame.f_back
session = type(frame.f_locals["self"])
call, within = session._forward, []

def noted(one, inputs, **more):
    within[:] = one._within
    return call(one, inputs, **more)

def look(one, call, *, since):
    one.otherwise = [["words of mine"], "gradients", 3, ["gradients", "gradients"]]

session._forward, session._look_elsewhere = noted, look

@triton.jit
"""
    code = CODE.replace("\n@triton.jit\n", patch).replace("LOOK", "if within: return x")
    verdict = bench.judge(code, problem=RELU)
    assert verdict.reason == "ok", verdict.detail
