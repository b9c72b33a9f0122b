"""Question 1's and question 2's comparison."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from forge.evalpool.judge.channel.shm import TensorSpec, decode, unwritten
from forge.evalpool.judge.wide import compare
from forge.evalpool.judge.wide.compare import (
    SAME_FUNCTION,
    Question,
    Wanted,
    agrees,
    differing,
    real_question,
)
from forge.evalpool.judge.wide.patterns import mismatch_words

REAL = Question(1e-4)
DRAW = np.random.default_rng(0)


def wanted(values: NDArray[np.generic], question: Question = SAME_FUNCTION) -> Wanted:
    spec = TensorSpec(str(values.dtype), values.shape)
    return Wanted(spec=spec, data=values.tobytes(), question=question)


@pytest.mark.parametrize("shape", [(), (7,), (3, 1), (40, 40), (5, 6, 33), (300, 200)])
def test_the_reference_agrees_and_one_wrong_element_differs(shape: tuple[int, ...]) -> None:
    right = DRAW.normal(size=shape)
    one = wanted(right)
    assert agrees(one, (right * (1 + 1e-9)).tobytes())
    got = right.copy()
    got[(-1,) * len(shape)] += 1e-4
    found = differing(one, got.tobytes())
    assert found is not None
    assert np.argwhere(found).tolist() == [[size - 1 for size in shape]]
    assert not agrees(one, unwritten(one.spec))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_element_may_be_near_to_the_exact_result_of_either_type(dtype: type) -> None:
    exact = np.maximum(DRAW.normal(size=64), 0).astype(dtype)
    eager = (exact * (1 + 3e-4)).astype(np.float32)
    one = replace(wanted(eager, REAL), exact=wanted(exact, REAL))
    assert agrees(one, exact.astype(np.float32).tobytes())
    for at in range(64):
        got = exact.astype(np.float32)
        got[at] += 1.0
        assert not agrees(one, got.tobytes()), at


def test_half_precision_within_float32_is_another_function() -> None:
    right = DRAW.normal(size=(64, 64))
    assert not agrees(wanted(right), right.astype(np.float16).astype(np.float64).tobytes())
    real = right.astype(np.float32)
    assert agrees(wanted(real, REAL), (real * np.float32(1.00005)).tobytes())
    assert not agrees(wanted(real, REAL), real.astype(np.float16).astype(np.float32).tobytes())


@pytest.mark.parametrize("large", ["row", "column"])
def test_beside_a_large_row_or_column_a_small_one_is_judged_by_its_own_scale(large: str) -> None:
    right = DRAW.normal(size=(200, 300))
    place = (17, slice(None)) if large == "row" else (slice(None), 17)
    right[place] *= 2.0**11
    got = right.copy()
    got[3, 3] += 1e-5
    assert not agrees(wanted(right), got.tobytes())
    got = right.copy()
    got[place] *= 1 + 1e-8
    assert agrees(wanted(right), got.tobytes())


def test_masked_scores_are_judged_without_their_sentinel() -> None:
    right = DRAW.normal(size=(64, 64))
    right[:, 40:] = -1e9 + DRAW.normal(size=(64, 24))
    got = np.where(right < -1e8, right, right + 1e-4)
    assert not agrees(wanted(right), got.tobytes())
    assert agrees(wanted(right), (right * (1 + 1e-9)).tobytes())


def test_nan_and_infinities_must_be_the_same() -> None:
    right = np.array([[np.inf, -np.inf, np.nan, 1.0] * 8])
    assert agrees(wanted(right), right.tobytes())
    for size in (1, 2000):  # small and large
        many = np.repeat(right, size, axis=0)
        for place, value in ((0, -np.inf), (1, 3.0), (2, 0.0), (3, np.nan), (3, np.inf)):
            got = many.copy()
            got[-1, place] = value
            found = differing(wanted(many), got.tobytes())
            assert found is not None
            assert np.argwhere(found).tolist() == [[size - 1, place]]


def test_all_zero_outputs_allow_nothing_else() -> None:
    assert agrees(wanted(np.zeros((20, 20))), np.zeros((20, 20)).tobytes())
    assert not agrees(wanted(np.zeros((20, 20))), np.full((20, 20), 1e-300).tobytes())


def test_integers_are_eagers_or_the_exact_ones_and_a_rounding_decides_on_few_others() -> None:
    right = np.arange(40_000).reshape(400, 100)
    got = right.copy()
    got[5] += 1
    assert not agrees(wanted(right), got.tobytes())
    exact = replace(wanted(right, REAL), exact=wanted(got))
    assert agrees(exact, got.tobytes())  # a rounding of eager's own
    assert not agrees(replace(exact, question=SAME_FUNCTION), (got + 1).tobytes())
    got = right.copy()
    got[:4, 5] += 7
    assert agrees(wanted(right, REAL), got.tobytes())
    got[4, 5] += 7
    assert not agrees(wanted(right, REAL), got.tobytes())
    alone = replace(REAL, is_alone=True)
    assert not agrees(wanted(right[:1, :6], alone), (right[:1, :6] + 1).tobytes())


def test_quantised_values_may_be_one_off_but_no_whole_row() -> None:
    right = DRAW.integers(-100, 100, size=(400, 100)).astype(np.int8)
    got = right.copy()
    got[:, 5] += 1
    assert agrees(wanted(right, REAL), got.tobytes())
    got[:, 5] += 1
    assert not agrees(wanted(right, REAL), got.tobytes())
    got = right.copy()
    got[5] += 1
    assert not agrees(wanted(right, REAL), got.tobytes())


def test_a_large_tensor_is_judged_as_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right = DRAW.normal(size=(50, 40)) * np.exp(DRAW.normal(size=(50, 1)) * 3)
    right[3, 4], right[4] = np.nan, 0.0
    got = right + 3e-6 * DRAW.normal(size=(50, 40))
    found = [differing(wanted(right), got.tobytes())]
    for limit in (7, 64, 1000):
        monkeypatch.setattr(compare, "BLOCK_ELEMENTS", limit)
        found.append(differing(wanted(right), got.tobytes()))
    first, *others = found
    assert first is not None
    assert 0 < first.sum() < first.size
    assert all(one is not None and np.array_equal(one, first) for one in others)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
def test_narrow_floats_have_the_values_that_torch_gives_them(kind: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes if kind.itemsize == 1 else codes.to(torch.int16) << 7
    spec = TensorSpec(str(kind).removeprefix("torch."), (256,))
    data = codes.numpy().tobytes()
    assert np.array_equal(decode(spec, data), codes.view(kind).double().numpy(), equal_nan=True)
    one = Wanted(spec=spec, data=data, question=real_question(spec.dtype, "fp32"))
    assert agrees(one, data)
    assert not agrees(one, unwritten(spec))


def test_the_first_difference_is_told_with_statistics_and_digits_that_tell_them_apart() -> None:
    right = wanted(np.full((4, 8), 0.5, np.float32), REAL)
    got = np.full((4, 8), 0.5, np.float32)
    got[3, 7] = 1.0
    differs = differing(right, got.tobytes())
    assert differs is not None
    words = mismatch_words(right, got.tobytes(), differs)
    assert words == "output[3, 7]: expected 0.5, got 1; 3% of elements differ, max abs error 0.5"
    right, got = wanted(np.full(100, 1.00012)), np.full(100, 1.00048)
    words = mismatch_words(right, got.tobytes(), np.ones(100, np.bool_))
    assert words.startswith("output[0]: expected 1.0001, got 1.0005;")
    words = mismatch_words(right, b"\xff" * 800, np.ones(100, np.bool_))
    assert "100% are NaN" in words
