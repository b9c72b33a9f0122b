"""Torch's work that only checks something is none of the answer's, what decides the answer is."""

from __future__ import annotations

from typing import Any

import pytest

from forge.records.verdict import Status
from tests.evalpool.benches import HEAD

ROWS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, i):
        return x[i] * 2
def get_inputs():
    return [torch.randn(64, 32), torch.randint(0, 64, (64,))]
def get_init_inputs():
    return []
"""
CODE = (
    HEAD
    + """
@triton.jit
def kernel(x, i, y, scale, B: tl.constexpr):
    row, k = tl.load(i + tl.program_id(0)), tl.arange(0, B)
    tl.store(y + tl.program_id(0) * B + k, tl.load(x + row * B + k) * scale)

class ModelNew(torch.nn.Module):
    def forward(self, x, i):
        y, scale = torch.empty(i.shape[0], 32, device=x.device), 2.0
        CHECK
        kernel[(i.shape[0],)](x, i, y, scale, B=32)
        return y
"""
)


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ("assert (i >= 0).all() and i.max() < x.shape[0]", "ok"),
        ("if torch.any(torch.isnan(x)): raise ValueError('NaN')", "ok"),
        ("if x.abs().max() < 0: print('odd')", "ok"),
        ("scale = 2.0 if x.abs().max() >= 0 else 3.0", "torch_work"),
        ("assert x.abs().max().item() >= 0", "torch_work"),
        ("assert (x @ x.t()).isfinite().all()", "torch_work"),
    ],
)
def test_an_assertion_is_no_work_of_torch_unless_the_output_depends_on_it(
    bench: Any, check: str, reason: str
) -> None:
    verdict = bench.judge(CODE.replace("CHECK", check), problem=ROWS)
    assert verdict.reason == reason, verdict.detail
    assert (verdict.status is Status.CORRECT) == (reason == "ok")
