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
import threading

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


@pytest.mark.parametrize(
    ("look", "problem", "reason", "words"),
    [
        ("if x.requires_grad: block = 512", RELU, "ok", ""),
        ("if x.requires_grad: raise ValueError('no gradient')", RELU, "ok", ""),
        ("if x.requires_grad: high = 3.0", RELU, "mismatch", "under gradients forward"),
        ("if not self.training: high = 3.0", RELU, "mismatch", "under eval() forward"),
        ("if not self.training: high = 3.0", TRAINED, "ok", ""),
        ("if f'{x.device}' != 'cuda:0': return x", RELU, "no_kernel_launch", "under a second card"),
        (
            "if threading.current_thread() is not threading.main_thread(): return torch.relu(x)",
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
