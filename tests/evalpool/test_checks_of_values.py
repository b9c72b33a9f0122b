"""Torch's work that only checks something is none of the answer's, what decides the answer is; nor
is an argument of forward that an answer ignores."""

from typing import Any

import pytest

from forge.records.verdict import Status
from tests.evalpool.benches import candidate, problem

ROWS = problem("return x[inputs[1]] * 2", inputs="torch.randn(64, 32), torch.randint(0, 64, (64,))")
CODE = candidate("""
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
""")


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


ARGUMENTS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, mask=None, *, scale=2.0):
        return x * scale if mask is None else x * scale * mask
def get_inputs():
    return [torch.randn(16, 32)]
def get_init_inputs():
    return []
"""
SCALED = candidate("""
@triton.jit
def kernel(x, m, y, scale, MASKED: tl.constexpr):
    i = tl.program_id(0) * 32 + tl.arange(0, 32)
    r = tl.load(x + i) * scale
    tl.store(y + i, r * tl.load(m + i) if MASKED else r)

class ModelNew(torch.nn.Module):
    def forward(self, x, mask=None, *, scale=2.0):
        y, is_masked = torch.empty_like(x), mask is not None
        kernel[(16,)](x, mask if is_masked else x, y, scale, MASKED=is_masked)
        return y
""")


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("scale, MASKED=is_masked", "scale, MASKED=is_masked", Status.CORRECT),
        ("scale, MASKED=is_masked", "2.0, MASKED=is_masked", Status.WRONG),
        ("scale, MASKED=is_masked", "scale, MASKED=False", Status.WRONG),
    ],
)
def test_an_answer_takes_every_argument_of_forward(
    bench: Any, old: str, new: str, status: Status
) -> None:
    verdict = bench.judge(SCALED.replace(old, new), problem=ARGUMENTS)
    assert verdict.status is status, verdict.detail


COUNTED = problem(
    "return self.norm(x)",
    inputs="torch.randn(64, 64)",
    head="self.norm = torch.nn.BatchNorm1d(64, affine=False, momentum=None)",
)
MEAN_OF_BATCHES = candidate("""
@triton.jit
def kernel(x, m, v, n, y, N: tl.constexpr):
    c, r = tl.program_id(0), tl.arange(0, N)
    a = tl.load(x + r * N + c)
    mean = tl.sum(a, 0) / N
    s = tl.sum((a - mean) * (a - mean), 0)
    f = 1.0 / tl.load(n)
    tl.store(m + c, tl.load(m + c) * (1 - f) + f * mean)
    tl.store(v + c, tl.load(v + c) * (1 - f) + f * s / (N - 1))
    tl.store(y + r * N + c, (a - mean) / tl.sqrt(s / N + 1e-5))

@triton.jit
def fixed(x, m, v, y, N: tl.constexpr):
    c = tl.arange(0, N)
    i = tl.program_id(0) * N + c
    a = tl.load(x + i) - tl.load(m + c)
    tl.store(y + i, a / tl.sqrt(tl.load(v + c) + 1e-5))

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(64, affine=False, momentum=None)
    def forward(self, x):
        y = torch.empty_like(x)
        if self.training:
            self.norm.num_batches_tracked.add_(1)
            kernel[(64,)](
                x, self.norm.running_mean, self.norm.running_var,
                self.norm.num_batches_tracked, y, N=64,
            )
        else:
            fixed[(64,)](x, self.norm.running_mean, self.norm.running_var, y, N=64)
        return y
""")


def test_a_counter_that_the_reference_reads_on_its_host_may_be_written(bench: Any) -> None:
    verdict = bench.judge(MEAN_OF_BATCHES, problem=COUNTED)
    assert verdict.status is Status.CORRECT, verdict.detail
