"""Calls of one judgement fuse different sums: no program may depend on which ones are."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest

from forge.evalpool.judge.execute.cpu.executor import CpuExecutor
from forge.evalpool.judge.trial.cpu_trial import fusions
from forge.evalpool.judge.ttir.contraction import ALL, NONE
from forge.records import Status
from tests.evalpool.benches import HEAD, RELU
from tests.evalpool.execute.made_programs import Made, use

if TYPE_CHECKING:
    from forge.evalpool.judge.program.format import Program
    from tests.evalpool.benches import Bench

RESIDUAL = """
@triton.jit
def kernel(x, y, a, k, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    if a * a - k {test} 0.0:
        tl.store(y + i, tl.maximum(tl.load(x + i), 0.0) * 2)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        a = 1 + 2.0**-12
        kernel[(16,)](x, y, a, float(torch.tensor(a) * torch.tensor(a)), B=64)
        return y
"""
SQUARE = """module {
  tt.func public @k(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>) {
    %v = tt.load %x : !tt.ptr<f32>
    %p = arith.mulf %v, %v : f32
    %e = arith.subf %p, %v : f32
    tt.store %y, %e : !tt.ptr<f32>
    tt.return
  }
}
"""


@pytest.mark.parametrize("test", ["==", "!="])
def test_a_kernel_that_needs_a_sum_fused_or_not_is_refused(bench: Bench, test: str) -> None:
    verdict = bench.judge(HEAD + RESIDUAL.format(test=test), problem=RELU)
    assert (verdict.status, verdict.reason) == (Status.WRONG, "output_not_written")


def test_all_sums_are_fused_then_none_then_any() -> None:
    found = list(islice(fusions(), 40))
    assert found[:2] == [ALL, NONE]
    assert len({*found}) > 30
    assert all(0 <= one <= ALL for one in found)


def program(*, enable_fp_fusion: bool) -> Program:
    from tests.evalpool.execute.host_judge import kernel

    made = Made()
    x, y = made.input([1]), made.tensor([1])
    number = kernel(made, "count_up")
    options = replace(made.kernels[number].options, enable_fp_fusion=enable_fp_fusion)
    made.kernels[number] = replace(made.kernels[number], name="k", ttir=SQUARE, options=options)
    made.nodes.append(made.launch(number, (1, 1, 1), use(x), use(y)))
    return made.done(y)


@pytest.mark.parametrize("enable_fp_fusion", [True, False])
def test_a_kernel_compiled_without_fusion_is_evaluated_without_it(enable_fp_fusion: bool) -> None:
    x = np.array([1 + 2.0**-12], np.float32)
    executor = CpuExecutor(program(enable_fp_fusion=enable_fp_fusion), [x.view(np.uint8)], {})
    executor.init()
    exact = np.float64(x[0]) ** 2 - np.float64(x[0])
    for fusion in (ALL, NONE):
        executor.forward(fusion=fusion)
        is_fused = enable_fp_fusion and fusion == ALL
        right = np.float32(exact) if is_fused else x[0] * x[0] - x[0]
        assert executor.read(1).view(np.float32)[0] == right
    assert np.float32(exact) != x[0] * x[0] - x[0]
