"""The comparison of other protocols is that of `torch.allclose`, on a CPU and on a card."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.numbers.protocols import PROTOCOLS
from forge.evalpool.judge.wide.compare import Bytes, OnCard, Question, Wanted, agree, mismatch
from tests.evalpool.numbers.drawn import spec_of, to_bytes
from tests.examples import examples

TYPES = {"float32": torch.float32, "float16": torch.float16, "int32": torch.int32}
SPECIAL = st.sampled_from([0.0, -0.0, 1.0, 1.0001, 1.01, math.nan, math.inf, -math.inf, 1e-5])
VALUES = st.lists(
    st.tuples(
        SPECIAL | st.floats(-100, 100), SPECIAL | st.floats(-100, 100) | st.just(None)
    ),
    min_size=1, max_size=6,
)  # fmt: skip


def are_close(reference: torch.Tensor, candidate: torch.Tensor, *, tolerance: float) -> bool:
    question = Question(tolerance, is_close=True)
    one, other = (Bytes(spec_of(each), to_bytes(each)) for each in (reference, candidate))
    found = mismatch(Wanted(values=one, question=question), other) is None
    on_a_card = Wanted(values=OnCard(reference), question=question)
    assert agree([(OnCard(candidate), on_a_card)]) == [found]
    assert (mismatch(on_a_card, OnCard(candidate)) is None) == found
    return found


@settings(deadline=None, max_examples=examples(300))
@given(pairs=VALUES, dtype=st.sampled_from(list(TYPES)), tolerance=st.sampled_from([1e-4, 1e-2]))
@example(pairs=[(math.nan, math.nan)], dtype="float32", tolerance=1e-2)
@example(pairs=[(1.0, math.inf)], dtype="float32", tolerance=1e-2)
@example(pairs=[(math.inf, math.inf)], dtype="float32", tolerance=1e-2)
@example(pairs=[(10000.0, 10001.0)], dtype="int32", tolerance=1e-4)
def test_outputs_agree_where_torch_allclose_says_so(
    pairs: list[tuple[float, float | None]], dtype: str, tolerance: float
) -> None:
    """None as the second value: close to the first one, by one half of the tolerance."""
    if dtype == "int32":
        pairs = [(a, b) for a, b in pairs if math.isfinite(a) and (b is None or math.isfinite(b))]
    near = [(a, a * (1 + tolerance / 2) if b is None else b) for a, b in pairs]
    reference = torch.tensor([a for a, _ in near], dtype=torch.float64).to(TYPES[dtype])
    candidate = torch.tensor([b for _, b in near], dtype=torch.float64).to(TYPES[dtype])
    wide = reference.double(), candidate.double()
    expected = torch.allclose(*wide, atol=tolerance, rtol=tolerance)
    assert are_close(reference, candidate, tolerance=tolerance) == expected


def test_booleans_must_be_equal() -> None:
    """`torch.allclose` cannot subtract them: those projects judge no such output."""
    truth = torch.tensor([True, False])
    assert are_close(truth, truth, tolerance=1e-2)
    assert not are_close(truth, ~truth, tolerance=1e-2)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None), ("y = x  # pass\n", None), ("z = 'passed'\n", None),
        ("x = 1\n'one pass over x'\n", 4), ("try: f()\nexcept E: g()\n", 3),
        ("import threading\n", 3), ("class A(torch.Tensor): ...\n", 3),
        ("torch.cuda.synchronize = f\n", 3),
    ],
)  # fmt: skip
def test_a_source_is_refused_where_kernelbenchs_static_check_finds_it(
    text: str, line: int | None
) -> None:
    code = f"@triton.jit\ndef k(x): tl.load(x)\n{text}"
    fault = PROTOCOLS["kernelbench"].source_fault(code)
    assert (fault and fault.line) == line
    assert PROTOCOLS["drkernel"].source_fault(code) is None


@pytest.mark.parametrize("name", ["kernelbench", "drkernel"])
def test_an_answer_that_waits_for_this_judges_hook_is_refused(name: str) -> None:
    code = "@triton.jit\ndef k(x): tl.load(x)\ndef load_reference(self, state): ...\n"
    fault = PROTOCOLS[name].source_fault(code)
    assert (fault.line, fault.message.split(":")[0]) == (3, f"{name} calls no load_reference")


def test_kernelbench_needs_the_text_of_a_kernel() -> None:
    for code in ("def k(x): tl.load(x)", "@triton.jit\ndef k(x): ..."):
        fault = PROTOCOLS["kernelbench"].source_fault(code)
        assert fault.line is None


@pytest.mark.parametrize(
    ("name", "precision", "tolerance"),
    [
        ("kernelbench", "fp32", 1e-4), ("kernelbench", "fp16", 1e-2), ("kernelbench", "bf16", 1e-2),
        ("drkernel", "fp32", 1e-2),
    ],
)  # fmt: skip
def test_each_protocol_has_the_tolerance_of_its_project(
    name: str, precision: str, tolerance: float
) -> None:
    assert PROTOCOLS[name].tolerances[precision] == tolerance
    one = torch.ones(1)
    assert are_close(one, one + 1.9 * tolerance, tolerance=tolerance)
    assert not are_close(one, one + 2.1 * tolerance, tolerance=tolerance)
