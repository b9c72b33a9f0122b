"""The comparison of a card with the evaluator: what it notes of a card, and what it finds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import equality, equality_compare, equality_model
from bench.equality_card import record
from bench.equality_cases import Case, evaluated
from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.ttir import semantics
from forge.evalpool.judge.ttir.control import regions
from forge.evalpool.judge.ttir.memory import atomics
from forge.evalpool.judge.ttir.plan import plan_of
from forge.evalpool.judge.ttir.steps import descriptors
from tests.evalpool.execute.host_judge import launched
from tests.evalpool.trial.made_judgements import Bench, open_bench, reference, scaled

ROOT = Path(__file__).parents[2]
SCALE = """module {
  tt.func public @scale(%x: !tt.ptr<f32>, %out: !tt.ptr<f32>, %factor: f32, %n: i64) {
    %i = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
    %wide = arith.extsi %i : tensor<16xi32> to tensor<16xi64>
    %ns = tt.splat %n : i64 -> tensor<16xi64>
    %mask = arith.cmpi slt, %wide, %ns : tensor<16xi64>
    %xs = tt.splat %x : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    %from = tt.addptr %xs, %i : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
    %value = tt.load %from, %mask : tensor<16x!tt.ptr<f32>>
    %factors = tt.splat %factor : f32 -> tensor<16xf32>
    %product = arith.mulf %value, %factors : tensor<16xf32>
    %outs = tt.splat %out : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    %to = tt.addptr %outs, %i : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
    tt.store %to, %product, %mask : tensor<16x!tt.ptr<f32>>
    tt.return
  }
}
"""
SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2.3
def get_inputs():
    return [torch.randn(6)]
def get_init_inputs():
    return []
"""
FACTOR = 2.3


@pytest.fixture
def noisy() -> Iterator[None]:
    """Operations with errors, for one test."""
    table: Any = semantics.OPERATIONS
    kept = dict(table)
    plan_of.cache_clear()
    before = regions.reduce, regions.scan, atomics.update, descriptors.update
    equality_model.install()
    yield
    table.update(kept)
    regions.reduce, regions.scan, atomics.update, descriptors.update = before
    plan_of.cache_clear()


@pytest.fixture
def bench() -> Iterator[Bench]:
    with open_bench() as opened:
        yield opened


def case_of(bench: Bench, *, card_factor: float = FACTOR) -> Case:
    """A case of `x * 2.3`, whose kernel on the card multiplies by another factor."""
    made, out = scaled(card_factor)
    made.kernels[-1] = replace(made.kernels[-1], ttir=SCALE)
    case = Case(name="p", group="corpus", source=SOURCE, precision="fp32")
    record(bench.judgement(made, out, problem=reference(factor=FACTOR)), case)
    return case


@pytest.mark.usefixtures("noisy")
def test_a_call_on_each_set_is_noted_and_equals_the_evaluator(bench: Bench) -> None:
    case = case_of(bench)
    assert len(case.calls) == case.num_sets
    row = evaluated(case)
    assert equality.differences(row) == []
    assert all(call["num_samples"] == equality_model.NUM_SAMPLES for call in row["calls"])
    outputs = [one for call in row["calls"] for one in call["outputs"]]
    assert all(one["num_equal"] == one["num_elements"] == 6 for one in outputs)
    assert row["estimate"]["candidate_us"] > 0
    assert row["estimate"]["baseline_us"] > 0


@pytest.mark.usefixtures("noisy")
def test_a_card_that_computes_something_else_differs(bench: Bench) -> None:
    case = case_of(bench)
    moved = tuple(_times(one, 1 + 1e-6) for one in case.calls[0].outputs)
    case.calls = [replace(case.calls[0], outputs=moved)]
    (found,) = equality.differences(evaluated(case))
    assert "beyond" in found
    assert "first at [0]" in found


def test_a_fault_on_the_card_is_noted_with_the_calls_before_it(bench: Bench) -> None:
    made, out = scaled()
    made.nodes.append(launched(made, "fault"))
    case = Case(name="p", group="corpus", source=SOURCE, precision="fp32")
    record(bench.judgement(made, out), case)
    assert case.calls == []
    assert "launch of fault" in case.failure


def test_a_case_is_kept_and_read_again(bench: Bench, tmp_path: Path) -> None:
    case = case_of(bench)
    case.name = "losses/huber"
    equality.write(case, tmp_path)
    (path,) = tmp_path.iterdir()
    found = equality.read(path)
    assert (found.name, len(found.calls)) == (case.name, len(case.calls))
    assert found.calls[0].outputs[0].tobytes() == case.calls[0].outputs[0].tobytes()


@pytest.mark.long
def test_a_run_that_is_ended_leaves_its_rows(bench: Bench, tmp_path: Path) -> None:
    for number in range(40):
        case = case_of(bench)
        case.name = f"case {number}"
        equality.write(case, tmp_path)
    rows = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench.equality", "--from", str(tmp_path), "--out", str(rows)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not rows.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
    found = json.loads(rows.read_text())
    assert 1 <= len(found) <= 40
    assert f"{len(found)} cases, {len(found)} compared, 0 differ" in output


FLOATS = TensorSpec("float32", (4,))


def _bytes(*values: float) -> bytes:
    return np.asarray(values, np.float32).tobytes()


@pytest.mark.parametrize(
    ("card", "num_beyond"),
    [
        ((1.0, 2.0, 3.0, float("nan")), 0),
        ((1.0, 2.0, 3.0 + 3e-3, float("nan")), 0),  # within the samples' spread of 1e-3, four times
        ((1.0, 2.0, 3.0 + 5e-3, float("nan")), 1),
        ((1.0, 2.0 + 1e-6, 3.0, float("nan")), 1),  # no sample moved it
        ((1.0, 2.0, 3.0, 4.0), 1),
        ((float("inf"), 2.0, 3.0, float("nan")), 1),
    ],
)
def test_an_element_may_differ_by_what_errors_change(
    card: tuple[float, ...], num_beyond: int
) -> None:
    base = 1.0, 2.0, 3.0, float("nan")
    samples = [_bytes(1.0, 2.0, 3.0 + by, float("nan")) for by in (-1e-3, 5e-4)]
    found = equality_compare.compare(FLOATS, _bytes(*card), _bytes(*base), samples)
    assert found.num_beyond == num_beyond
    assert bool(found.first) == bool(num_beyond)


@pytest.mark.parametrize(
    ("card", "num_beyond", "num_unstable"), [(7, 0, 0), (8, 0, 1), (7 << 8, 1, 0)]
)
def test_integers_are_equal_but_where_errors_change_them(
    card: int, num_beyond: int, num_unstable: int
) -> None:
    base, moved = np.array([7, 7], np.int32), np.array([8, 7], np.int32)
    given = np.array([card, 7] if card < 100 else [7, card], np.int32)
    spec = TensorSpec("int32", (2,))
    found = equality_compare.compare(spec, given.tobytes(), base.tobytes(), [moved.tobytes()])
    assert (found.num_beyond, found.num_unstable) == (num_beyond, num_unstable)


@pytest.mark.usefixtures("noisy")
@pytest.mark.parametrize(("name", "moves"), [("arith.mulf", True), ("arith.maximumf", False)])
def test_errors_are_those_of_operations_that_round(name: str, moves: bool) -> None:
    from forge.evalpool.judge.ttir.types import Scalar
    from forge.evalpool.judge.ttir.values import Signature

    kind = Scalar("f32")
    signature = Signature(operands=(kind, kind), results=(kind,))
    operation: Any = semantics.OPERATIONS[name]
    left, right = np.array([[1.1, 2.0, 0.0], [1.3, 0.5, 7.0]], np.float32)
    plain = operation([left, right], signature, {})[0]
    found = [
        equality_model.sampled(lambda: operation([left, right], signature, {})[0], seed=seed)
        for seed in range(8)
    ]
    assert any(one[0] != plain[0] for one in found) == moves
    assert all(one[1] == plain[1] and one[2] == plain[2] for one in found)  # exact
    assert max(abs(one[0] / plain[0] - 1) for one in found) <= 2.0**-22
    assert np.array_equal(operation([left, right], signature, {})[0], plain)


@pytest.mark.usefixtures("noisy")
def test_a_sum_has_the_error_of_another_order() -> None:
    """Of 2^24 + 1 - 2^24 some orders lose the 1, though this one does not."""
    values = np.array([[2.0**24, 1.0, -(2.0**24), 0.0]], np.float32)

    def combine(left: Any, right: Any) -> Any:
        return [left[0] + right[0]]

    def total() -> float:
        return float(regions.reduce([values], 0, combine, "arith.addf")[0][0])

    assert total() == 1.0
    found = [equality_model.sampled(total, seed=seed) for seed in range(8)]
    assert 0.5 < max(abs(one - 1) for one in found) < 8


def test_ratios_of_estimates_are_summed_up() -> None:
    rows = [
        {"name": str(number), "calls": [{"variant": "given", "faults": [], "outputs": []}],
         "candidate_us": 10.0, "baseline_us": 20.0,
         "estimate": {"candidate_us": 5.0 * number, "baseline_us": 10.0 * number}}
        for number in (1, 2, 3)
    ]  # fmt: skip
    lines, num_differing = equality.summary(rows)
    assert num_differing == 0
    assert "candidate_us: estimated / measured 1 (0.75 to 1.25), 0.5 to 1.5 in all, n = 3" in lines
    assert "speedup: estimated / measured 1 (1 to 1), 1 to 1 in all, n = 3" in lines


def _times(data: np.ndarray[Any, Any], factor: float) -> np.ndarray[Any, Any]:
    moved = data.view(np.float32) * np.float32(factor)
    return np.frombuffer(moved.tobytes(), np.uint8)
