"""Comparison of an output with the reference, and the message where it fails."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge.evalpool.judge.channel.shm import TensorSpec, decode, unwritten
from forge.evalpool.judge.numbers import compare
from forge.evalpool.judge.numbers.compare import Expected, mismatch
from forge.evalpool.judge.numbers.shares import with_shares
from forge.evalpool.judge.numbers.tolerance import families, is_sentinel


def expected(values: np.ndarray, *, error: float = 0.0, precision: str = "fp32") -> Expected:
    spec = TensorSpec(str(values.dtype), values.shape)
    num_slabs = sum(math.prod(values.shape[a] for a in axes) for axes in families(values.shape))
    errors = np.full(num_slabs, error, np.float32).tobytes()
    return Expected.make(spec, values.tobytes(), error=errors, precision=precision)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_narrow_floats_have_the_values_that_torch_gives_them(kind: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    spec = TensorSpec(str(kind).removeprefix("torch."), (256,))
    found = decode(spec, codes.numpy().tobytes())
    assert np.array_equal(found, codes.view(kind).double().numpy(), equal_nan=True)
    one = Expected.make(spec, codes.numpy().tobytes(), error=b"", precision="fp32")
    assert mismatch(one, codes.numpy().tobytes()) is None
    assert mismatch(one, unwritten(spec)) is not None


def test_the_first_mismatch_is_told_with_statistics() -> None:
    reference = np.full((4, 8), 0.5, np.float32)
    got = reference.copy()
    got[3, 7] = 1.0
    words = mismatch(expected(reference), got.tobytes())
    assert words == "output[3, 7]: expected 0.5, got 1; 3% of elements differ, max abs error 0.5"


def test_two_numbers_have_as_many_digits_as_tell_them_apart() -> None:
    reference = np.full(100, 1.00012, np.float32)
    words = mismatch(expected(reference), (reference + np.float32(3.6e-4)).tobytes()) or ""
    assert words.startswith("output[0]: expected 1.0001, got 1.0005;")


def test_an_unwritten_slot_never_agrees() -> None:
    for dtype in (np.float32, np.float16, np.int64, np.bool_):
        one = expected(np.zeros((3, 2), dtype))
        words = mismatch(one, unwritten(one.spec))
        assert words is not None
    assert "100% are NaN" in (mismatch(expected(np.ones(3, np.float32)), b"\xff" * 12) or "")


def test_tolerance_grows_with_the_error_of_eager_itself() -> None:
    reference = np.ones(5, np.float32)
    off = (reference + 0.01).tobytes()
    assert mismatch(expected(reference), off) is not None
    assert mismatch(expected(reference, error=0.003), off) is None


def test_of_a_few_elements_each_has_a_scale_of_its_own() -> None:
    outputs = [torch.tensor([5e5, 1e-3, 4.0]), torch.tensor([2e5, 0.5, 90.0])]
    errors = with_shares(outputs, [torch.zeros(3)] * 2, precision="fp32")
    without = [torch.zeros(3), torch.zeros(0)]
    assert [len(e) for e in with_shares(outputs, without, precision="fp32")] == [6, 0]
    spec = TensorSpec("float32", (3,))
    made = [
        Expected.make(spec, a.numpy().tobytes(), error=b.numpy().tobytes(), precision="fp32")
        for a, b in zip(outputs, errors, strict=True)
    ]
    for one, output in zip(made, outputs, strict=True):
        assert mismatch(one, output.numpy().tobytes()) is None
        assert mismatch(one, (output * torch.tensor([1, 1, 0])).numpy().tobytes()) is not None
        assert mismatch(one, (output * (1 + 1e-4)).numpy().tobytes()) is None
    assert mismatch(made[1], (outputs[1] * torch.tensor([1, 0, 1])).numpy().tobytes()) is not None


def test_masked_scores_are_judged_without_their_sentinel() -> None:
    scores = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    scores[np.triu_indices(64, 1)] = -1e9
    nothing = np.where(scores < -1e8, scores, np.float32(0))
    assert mismatch(expected(scores), scores.tobytes()) is None
    assert mismatch(expected(scores), nothing.tobytes()) is not None
    off = np.where(scores < -1e8, scores * 0.9, scores).astype(np.float32)
    assert mismatch(expected(scores), off.tobytes()) is not None


def test_a_few_large_values_are_no_sentinel() -> None:
    assert is_sentinel(1e9, 3.0, 16)
    assert not is_sentinel(1e9, 3.0, 15)
    assert not is_sentinel(1000.0, 3.0, 500)
    assert not is_sentinel(5.0, 0.0, 500)


def test_half_precision_is_judged_more_loosely() -> None:
    reference = np.ones(5, np.float16)
    assert mismatch(expected(reference, precision="fp16"), (reference * 1.01).tobytes()) is None


def test_a_half_precision_output_of_an_fp32_problem_is_judged_as_what_it_is() -> None:
    reference = np.ones(5, np.float16)
    assert mismatch(expected(reference), (reference * 1.01).tobytes()) is None
    wide = reference.astype(np.float32)
    assert mismatch(expected(wide), (wide * np.float32(1.01)).tobytes()) is not None


def test_infinities_must_be_the_same() -> None:
    reference = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
    assert mismatch(expected(reference), reference.tobytes()) is None
    assert mismatch(expected(reference), (-reference).tobytes()) is not None
    finite = np.array([1.0, 1.0, 1.0, 1.0], np.float32)
    assert mismatch(expected(finite), reference.tobytes()) is not None


def test_integers_must_be_equal() -> None:
    reference = np.arange(6, dtype=np.int64)
    assert mismatch(expected(reference), reference.tobytes()) is None
    assert mismatch(expected(reference), (reference + 1).tobytes()) is not None


def test_bfloat16_is_read_without_a_bfloat16_type() -> None:
    spec = TensorSpec("bfloat16", (2,))
    data = np.array([0x3F80, 0xC000], np.uint16).tobytes()  # 1.0, -2.0
    one = Expected.make(spec, data, error=b"", precision="bf16")
    assert one.values.tolist() == [1.0, -2.0]
    assert mismatch(one, data) is None


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50))
def test_another_summation_order_agrees(values: list[float]) -> None:
    wide = np.array(values, np.float64)
    forward, backward = np.float32(0), np.float32(0)
    for value in wide.astype(np.float32):
        forward = np.float32(forward + value)
    for value in wide.astype(np.float32)[::-1]:
        backward = np.float32(backward + value)
    exact = wide.astype(np.float32).astype(np.float64).sum()
    scale = np.abs(wide).max()
    reference = np.array([forward, scale], np.float32)
    error = np.array([abs(float(forward) - exact), 0.0], np.float32)
    one = Expected.make(
        TensorSpec("float32", (2,)), reference.tobytes(), error=error.tobytes(), precision="fp32"
    )
    assert mismatch(one, np.array([backward, scale], np.float32).tobytes()) is None


@pytest.mark.parametrize("shape", [(), (7,), (40, 30), (5, 6, 70), (3, 4, 5, 6), (1, 300)])
@pytest.mark.parametrize("special", [None, np.nan, np.inf, -1e9])
def test_tolerances_are_those_of_the_whole_tensor_however_small_its_blocks_are(
    shape: tuple[int, ...], special: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "BLOCK_ELEMENTS", 16)
    draw = np.random.default_rng(0)
    values = np.asarray(draw.normal(size=shape) * 10.0 ** draw.uniform(-3, 3, shape), np.float32)
    if special is not None and values.size > 100:
        values.reshape(-1)[: 20 if special < 0 else 1] = special
    groups = families(shape)
    sizes = [math.prod(shape[a] for a in axes) for axes in groups]
    errors = draw.uniform(0, 1e-3, sum(sizes)).astype(np.float32)
    floors = draw.uniform(0, 1, sum(sizes)).astype(np.float32)
    one = Expected.make(
        TensorSpec("float32", shape),
        values.tobytes(),
        error=np.concatenate([errors, floors]).tobytes(),
        precision="fp32",
    )
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(values) & (values != -1e9)
        squares = np.where(finite, values, 0).astype(np.float64) ** 2
        least, lost = np.full(shape, np.inf), np.full(shape, np.inf)
        whole = math.sqrt(squares.sum() / max(1, finite.sum()))
        for axes, error, floor in zip(
            groups, _split(errors, sizes), _split(floors, sizes), strict=True
        ):
            others = tuple(a for a in range(len(shape)) if a not in axes)
            counts = np.maximum(finite.sum(others, keepdims=True), 1)
            own = np.sqrt(squares.sum(others, keepdims=True) / counts)
            least = np.minimum(least, np.maximum(own, floor.reshape(own.shape) * whole))
            lost = np.minimum(lost, error.reshape(own.shape))
        allowed = 1e-4 * (least + np.abs(values.astype(np.float64))) + 4 * lost
    assert np.allclose(one.allowed, allowed, rtol=1e-12, equal_nan=True)
    assert mismatch(one, values.tobytes()) is None
    for number in np.flatnonzero(finite)[:8]:
        for share, is_right in ((0.99, True), (1.02, False)):
            off = values.astype(np.float64)
            off.reshape(-1)[number] += share * allowed.reshape(-1)[number]
            # What is written has float32's rounding, which the tolerance is far above.
            assert (mismatch(one, off.astype(np.float32).tobytes()) is None) == is_right


def _split(vector: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(vector, np.cumsum(sizes)[:-1])
