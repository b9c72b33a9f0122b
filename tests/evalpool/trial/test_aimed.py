"""A decision of a kernel by its data that took one side alone: sets are aimed at the other one."""

import pytest

from forge.records import Status
from tests.evalpool.benches import Bench

SCALED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(1))

    def forward(self, a, b):
        return a * b + torch.softmax(a, -1) + self.scale

def get_inputs():
    return [torch.randn(24, 32), torch.randn(24, 32)]

def get_init_inputs():
    return []
"""
KERNEL = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(a, b, s, y, B: tl.constexpr):
    r = tl.program_id(0)
    j = tl.arange(0, B)
    i = r * B + j
    x, z, g = tl.load(a + i), tl.load(b + i), tl.load(s)
    e = tl.exp(x - tl.max(x, axis=0))
    v = x * z + e / tl.sum(e, axis=0) + g
    {lines}
    tl.store(y + i, v)

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(1))

    def forward(self, a, b):
        y = torch.empty_like(a)
        kernel[(24,)](a, b, self.scale, y, B=32)
        return y
"""
COUNT = "tl.sum(({}).to(tl.int32), axis=0)"
WRONG = {
    "a constant": "v = tl.where(x * 2.0 == 74.5, 0.0, v)",
    "a band": "v = tl.where((x > 5.24) & (x < 5.26), 0.0, v)",
    "all whole": f"v = tl.where({COUNT.format('x != tl.floor(x)')} == 0, 0.0, v)",
    "another input's square": f"v = tl.where({COUNT.format('z != x * x')} == 0, 0.0, v)",
    "odd elements 0": f"v = tl.where({COUNT.format('(x != 0) & (j % 2 == 1)')} == 0, v + x, v)",
    "as a number": f"v = v * (1 - ({COUNT.format('x >= z')} == 0).to(tl.float32))",
    "a branch": f"if {COUNT.format('x != tl.floor(x)')} == 0:\n        v = v * 0.5",
    "a bound": "v = tl.minimum(v, 700.0)",
    "a parameter as it is constructed": "v = tl.where(g == 0.0, 0.0, v)",
}
"""Kernels that are wrong for inputs which no problem gives and no table of plants foresees."""
NUM_DRAWS = 3


@pytest.mark.parametrize("what", WRONG)
def test_a_kernel_that_is_wrong_on_a_side_which_ordinary_sets_do_not_take_is_refused(
    bench: Bench, what: str
) -> None:
    code = KERNEL.format(lines=WRONG[what])
    found = [
        bench.judge(code, problem=f"{SCALED}# {what} {number}\n").status
        for number in range(NUM_DRAWS)
    ]
    assert Status.WRONG in found


def test_a_guard_stays_and_a_right_verdict_names_the_side_that_was_never_taken(
    bench: Bench,
) -> None:
    guard = "v = tl.where(tl.sum(e, axis=0) < -1.0, 0.0, v)"
    code = KERNEL.format(lines=f"v = tl.where(x != x, 0.0, v)\n    {guard}")
    verdict = bench.judge(code, problem=SCALED)
    line = code.split("\n").index(f"    {guard}") + 1
    assert verdict.detail.startswith(f"line {line}: ")
    assert (verdict.status, verdict.detail.count("never taken")) == (Status.CORRECT, 1)


def test_a_right_verdict_names_a_few_sides_and_counts_the_others(bench: Bench) -> None:
    guards = [f"v = tl.where(tl.sum(e, axis=0) < -{place}.0, 0.0, v)" for place in range(1, 9)]
    verdict = bench.judge(KERNEL.format(lines="\n    ".join(guards)), problem=SCALED)
    assert verdict.status is Status.CORRECT
    assert verdict.detail.count("never taken") == 5
    assert "3 more" in verdict.detail


def test_a_kernel_without_such_a_decision_is_judged_on_one_draw(bench: Bench) -> None:
    before = len(bench.references._cache)
    verdict = bench.judge(KERNEL.format(lines=""), problem=f"{SCALED}# plain\n")
    assert verdict.status is Status.CORRECT
    assert not verdict.detail
    assert len(bench.references._cache) <= before + 1


def test_a_draw_for_one_candidates_decisions_drives_out_none_that_others_share(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.references, "max_problems", 1)
    problem = f"{SCALED}# shared\n"
    guard = "v = tl.where(tl.sum(e, axis=0) < -1.0, 0.0, v)"
    assert bench.judge(KERNEL.format(lines=guard), problem=problem).status is Status.CORRECT
    (kept,) = bench.references._cache.values()
    assert bench.judge(KERNEL.format(lines=""), problem=problem).status is Status.CORRECT
    assert [*bench.references._cache.values()] == [kept]
