"""Estimated times: the roofline, costs of a candidate and its reference, what is said of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pytest

from forge.config.schema import JudgeTable, ModelCardName
from forge.evalpool.judge.estimate.cards import CALL_US, CARDS, LAUNCH_US, Work, estimate
from forge.evalpool.judge.estimate.program import MAX_NODES, estimate_program
from forge.evalpool.judge.execute.cpu.executor import CpuExecutor
from forge.evalpool.judge.ttir.plan import plan_of
from forge.evalpool.shapes import fold_verdicts
from forge.records import Status, Verdict
from forge.records.estimate import TimeEstimate
from tests.evalpool.benches import TABLE
from tests.evalpool.capture.capturing import captured
from tests.prompting import PROMPTS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.evalpool.benches import Bench

COST = {
    "name": "kernel", "line": 7, "tensor_bytes": 8 << 20, "requested_bytes": 8 << 20,
    "flops": {"fp32": 0.0, "half": 1.0}, "num_programs": 1024, "contended": 3,
}  # fmt: skip
PRODUCT = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, w):
        return torch.relu(x @ w)
def get_inputs():
    return [torch.randn(64, 32), torch.randn(32, 64)]
def get_init_inputs():
    return []
"""
KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def product(x, w, y, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    k, j = tl.arange(0, K), tl.arange(0, N)
    a = tl.load(x + i[:, None] * K + k)
    b = tl.load(w + k[:, None] * N + j)
    tl.store(y + i[:, None] * N + j, tl.maximum(tl.dot(a, b, input_precision="ieee"), 0.0))

class ModelNew(torch.nn.Module):
    def forward(self, x, w):
        y = torch.empty(64, 64, dtype=x.dtype, device=x.device)
        product[(4,)](x, w, y, 64, 32, 64, B=16)
        return y
"""


def made(costs: list[dict[str, Any]], operations: list[tuple[int, int]]) -> TimeEstimate | None:
    return estimate_program(costs, operations, card="H100", precision="fp32", is_tf32=True)


def test_every_card_of_the_key_has_its_peaks() -> None:
    assert set(CARDS) == set(get_args(ModelCardName))
    assert JudgeTable().model_card is None


@pytest.mark.parametrize(
    ("work", "measured_us"),
    [
        (Work(tensor_bytes=3 * (16 << 20) * 4, num_programs=16384), 52.8),  # add of 16 M floats
        (Work(tensor_bytes=2 * 8192 * 4096 * 4, num_programs=8192), 70.4),  # softmax
        (Work(tensor_bytes=3 * 2048**2 * 2, flops={"half": 2 * 2048**3}), 30.1),
        (Work(tensor_bytes=3 * 4096 * 4, num_programs=4), 4.0),
    ],
)
def test_an_estimate_is_near_what_an_h200_took(work: Work, measured_us: float) -> None:
    """bench/RESULTS.md, "The executor of programs"."""
    assert CALL_US + estimate(work, CARDS["H200"])[0] == pytest.approx(measured_us, rel=0.1)


def test_few_programs_use_few_multiprocessors() -> None:
    work = Work(tensor_bytes=1 << 20, requested_bytes=64 << 20, flops={"fp32": 1e9}, num_programs=1)
    alone, bound = estimate(work, CARDS["H100"])
    full, _ = estimate(replace(work, num_programs=1000), CARDS["H100"])
    assert bound == "arithmetic"
    assert (alone - LAUNCH_US) / (full - LAUNCH_US) == pytest.approx(132)


def test_the_bound_is_named() -> None:
    card = CARDS["A100"]
    assert estimate(Work(tensor_bytes=100), card) == (pytest.approx(LAUNCH_US, rel=1e-3), "launch")
    assert estimate(Work(tensor_bytes=1 << 30), card)[1] == "memory"
    assert estimate(Work(tensor_bytes=1 << 20, flops={"half": 1e12}), card)[1] == "arithmetic"


def test_the_slowest_nodes_are_kept_in_order_and_all_are_summed() -> None:
    costs = [{**COST, "name": f"k{n}", "tensor_bytes": n << 20} for n in range(20)]
    found = made(costs, [(1 << 20, 0)])
    assert found is not None
    assert [one.name for one in found.nodes] == [f"k{n}" for n in range(20 - MAX_NODES, 20)]
    assert found.candidate_us > CALL_US + sum(one.us for one in found.nodes)


def test_nothing_is_estimated_where_nothing_is_known() -> None:
    assert made([], [(1, 1)]) is None
    assert made([COST], []) is None


@pytest.mark.parametrize("value", [-1, 1e300, float("nan"), "9", None, [], {}])
@pytest.mark.parametrize("name", list(COST))
def test_costs_of_a_hostile_child_are_a_finite_estimate(name: str, value: object) -> None:
    found = made([{**COST, name: value}], [(1 << 20, 0)])
    assert found is not None
    assert CALL_US + LAUNCH_US <= found.candidate_us < 1e12
    assert TimeEstimate.from_json(json.loads(json.dumps({**_json(found)}))) == found


def test_a_correct_candidate_has_an_estimate_of_its_own_work(bench: Bench) -> None:
    table = TABLE.model_copy(update={"model_card": "H100"})
    verdict = bench.judge(KERNEL, problem=PRODUCT, table=table)
    assert verdict.status is Status.CORRECT, verdict.detail
    found = verdict.estimate
    assert found is not None
    (node,) = found.nodes
    assert (node.name, node.bound) == ("product", "launch")
    assert node.flops == pytest.approx(2 * 64 * 32 * 64 + 64 * 64, rel=0.1)
    assert node.num_bytes == 4 * (64 * 32 * 2 + 64 * 64)
    assert found.baseline_us == pytest.approx(CALL_US + 2 * LAUNCH_US, rel=0.1)  # mm, relu
    assert verdict.timing is None
    assert "not measured" in PROMPTS.feedback_message(verdict).content
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


BEHIND_A_HALF = KERNEL.replace(
    "    tl.store",
    "    a += tl.dot(tl.zeros((B, B), tl.float16), tl.zeros((B, K), tl.float16))\n    tl.store",
)
BY_ASSEMBLY = KERNEL.replace(
    'tl.dot(a, b, input_precision="ieee")',
    'tl.sum(tl.inline_asm_elementwise("mul.f32 $0, $1, $2;", "=f,f,f", [a[:, :, None], b[None]],'
    " dtype=tl.float32, is_pure=True, pack=1), 1)",
)
SCALED = KERNEL.replace(
    'tl.dot(a, b, input_precision="ieee")',
    'tl.dot_scaled(a.to(tl.bfloat16), None, "bf16", b.to(tl.bfloat16), None, "bf16")',
)


@pytest.mark.parametrize(
    ("code", "least"),
    [
        (KERNEL, {"fp32": 2 * 16 * 32 * 64}),
        (BEHIND_A_HALF, {"fp32": 2 * 16 * 32 * 64, "half": 2 * 16 * 16 * 32}),
        (BY_ASSEMBLY, {"fp32": 2 * 16 * 32 * 64}),
        (SCALED, {"half": 2 * 16 * 32 * 64}),
    ],
)
def test_arithmetic_counts_for_the_unit_that_does_it(
    tmp_path: Path, code: str, least: dict[str, float]
) -> None:
    """A product in half precision makes no other work cheap, and no way to compute is free."""
    program = captured(tmp_path, code, inputs=[[64, 32], [32, 64]])
    (kernel,) = program.kernels
    (function,) = plan_of(kernel.ttir).functions.values()
    found = {unit: flops for block in function.blocks for unit, flops in block.flops.items()}
    assert found.keys() >= least.keys()
    assert all(found[unit] >= flops for unit, flops in least.items())
    assert found.get("half", 0.0) <= least.get("half", 0.0)


ADDED = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, N: tl.constexpr):
    i, j = tl.arange(0, 64), tl.program_id(0)
    PLACE

class ModelNew(torch.nn.Module):
    def forward(self, x, w):
        y = torch.zeros(64, 32, device=x.device)
        kernel[(32,)](x, y, N=32)
        return y
"""
ACCESSES = {
    "rows": ("tl.store(y + j * 64 + i, tl.load(x + j * 64 + i))", 2 * 4 * 64 * 32, 0),
    "columns": ("tl.store(y + i * N + j, tl.load(x + i * N + j))", 2 * 32 * 64 * 32, 0),
    "one place": ("tl.atomic_add(y + i * 0, tl.load(x + i * N + j))", None, 64 * 32),
    "a place each": ("tl.atomic_add(y + i * N + j, tl.load(x + i * N + j))", None, 0),
}


@pytest.mark.parametrize("name", ACCESSES)
def test_accesses_count_as_a_card_makes_them(tmp_path: Path, name: str) -> None:
    """It moves sectors of 32 bytes, and updates one place once at a time."""
    line, num_bytes, contended = ACCESSES[name]
    program = captured(tmp_path, ADDED.replace("PLACE", line), inputs=[[64, 32], [1]])
    given = [np.zeros(64 * 32 * 4, np.uint8), np.zeros(4, np.uint8)]
    (cost,) = (c for c in CpuExecutor(program, given, {}).forward().costs if c.name == "kernel")
    assert num_bytes in (None, cost.requested_bytes)
    assert cost.contended == contended


def test_a_value_that_the_host_reads_takes_its_time(bench: Bench) -> None:
    table = TABLE.model_copy(update={"model_card": "H100"})
    reading = KERNEL.replace(
        "        product[", "        assert x[0, 0].item() < 1e30\n        product["
    )
    estimates = [
        bench.judge(one, problem=PRODUCT, table=table).estimate for one in (KERNEL, reading)
    ]
    plain, waiting = (one.candidate_us for one in estimates if one is not None)
    assert waiting - plain == pytest.approx(LAUNCH_US, rel=0.01)


def test_without_the_key_and_for_a_wrong_candidate_there_is_none(bench: Bench) -> None:
    assert bench.judge(KERNEL, problem=PRODUCT).estimate is None
    table = TABLE.model_copy(update={"model_card": "H100"})
    wrong = KERNEL.replace("0.0))", "0.1))")
    assert bench.judge(wrong, problem=PRODUCT, table=table).estimate is None


def test_several_shapes_have_geometric_means_if_all_are_estimated() -> None:
    one = TimeEstimate(card="H100", candidate_us=2.0, baseline_us=4.0)
    two = TimeEstimate(card="H100", candidate_us=8.0, baseline_us=64.0)
    correct = Verdict(status=Status.CORRECT, reason="ok", detail="")
    folded = fold_verdicts(["a", "b"], [replace(correct, estimate=each) for each in (one, two)])
    assert folded.estimate is not None
    assert folded.estimate.speedup == pytest.approx(4.0)
    assert fold_verdicts(["a", "b"], [replace(correct, estimate=one), correct]).estimate is None


def _json(found: TimeEstimate) -> dict[str, Any]:
    verdict = Verdict(status=Status.CORRECT, reason="ok", detail="", estimate=found)
    return verdict.to_json()["estimate"]
