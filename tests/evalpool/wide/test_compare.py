"""Question 1's and question 2's comparison."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from forge.evalpool.judge.channel.shm import Data, TensorSpec, decode, unwritten
from forge.evalpool.judge.numbers import called
from forge.evalpool.judge.numbers.called import dtype_name
from forge.evalpool.judge.wide import compare
from forge.evalpool.judge.wide.compare import (
    SAME_FUNCTION,
    Bytes,
    OnCard,
    Question,
    Wanted,
    agree,
    mismatch,
    real_question,
)

REAL = Question(1e-4)
DRAW = np.random.default_rng(0)


def wanted(values: NDArray[np.generic], question: Question = SAME_FUNCTION) -> Wanted:
    spec = TensorSpec(str(values.dtype), values.shape)
    return Wanted(values=Bytes(spec, values.tobytes()), question=question)


def of(one: Wanted, data: Data) -> Bytes:
    return Bytes(TensorSpec(one.values.dtype, one.values.shape), data)


def in_bytes(one: torch.Tensor) -> Bytes:
    raw = one.contiguous().reshape(-1).view(torch.uint8).numpy() if one.numel() else np.zeros(0)
    return Bytes(TensorSpec(dtype_name(one), tuple(one.shape)), raw.tobytes())


def agrees(one: Wanted, data: Data) -> bool:
    return mismatch(one, of(one, data)) is None


def differing(one: Wanted, data: Data) -> NDArray[np.bool_] | None:
    found = mismatch(one, of(one, data))
    return None if found is None else found[1]


def words_of(one: Wanted, data: Data) -> str:
    return (mismatch(one, of(one, data)) or ("", None))[0]


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
    assert not agrees(one, unwritten(TensorSpec("float64", shape)))


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


CASES: dict[str, tuple[torch.dtype, Question, tuple[int, ...]]] = {
    "wide": (torch.float64, SAME_FUNCTION, (40, 33)),
    "three axes": (torch.float64, SAME_FUNCTION, (3, 17, 20)),
    "short rows": (torch.float64, SAME_FUNCTION, (50, 3)),
    "real": (torch.float32, real_question("float32", "fp32"), (40, 33)),
    "half": (torch.float16, real_question("float16", "fp16"), (9, 16)),
    "bf16": (torch.bfloat16, real_question("bfloat16", "bf16"), (9, 16)),
    "number": (torch.float64, SAME_FUNCTION, ()),
    "none": (torch.float32, real_question("float32", "fp32"), (0, 4)),
    "integers": (torch.int64, SAME_FUNCTION, (500,)),
    "real integers": (torch.int32, real_question("int32", "fp32"), (50,)),
    "quantised": (torch.int8, real_question("int8", "fp32"), (9, 16)),
    "alone": (torch.int64, replace(real_question("int64", "fp32"), is_alone=True), (9, 40)),
    "booleans": (torch.bool, SAME_FUNCTION, (7, 7)),
}


@pytest.mark.parametrize("limit", [64, 1 << 17])
@pytest.mark.parametrize("name", CASES)
def test_both_devices_say_the_same(name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements are off by about the tolerance; there are special values and a sentinel. Under the
    lower limit all outputs count as large ones. The card is a CPU here."""
    monkeypatch.setattr(called, "CACHED", limit)
    if limit == 64:
        monkeypatch.setattr(compare, "LOOKED_AT", 1)
    kind, question, shape = CASES[name]
    draw = torch.Generator().manual_seed(3)
    verdicts = set[bool]()
    for turn in range(24):
        right = torch.randn(shape, generator=draw, dtype=torch.float64) * 10.0 ** (turn % 3)
        if shape:  # rows of unlike scale
            unlike = 10.0 ** -torch.randint(0, 3, (*shape[:-1], 1), generator=draw)
            right *= unlike if kind.is_floating_point else 1
        if kind.is_floating_point and turn % 4 == 1 and right.numel() > 40:
            right.view(-1)[5:8] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        if kind.is_floating_point and turn % 4 == 2 and kind is not torch.float16 and shape:
            right.view(-1)[::3] = -1e9
        right = (right > 0) if kind is torch.bool else right.to(kind)
        got = right.clone()
        if got.numel():
            at = torch.randint(got.numel(), (1 + 3 * (turn % 3),), generator=draw)
            step = question.tolerance * (0.5 + torch.rand(len(at), generator=draw))
            old = right.view(-1)[at]
            length = shape[-1] if shape else 1
            rows = right.reshape(-1, length).double().nan_to_num(0.0, 0.0, 0.0).abs().mean(-1)
            news = old.double() * (1 + step) + step * rows[at // length] * (turn % 5 == 0)
            news = ~old if kind is torch.bool else news + (not kind.is_floating_point)
            got.view(-1)[at] = news.to(kind) if turn % 6 else torch.zeros_like(old)
        ours = Wanted(values=OnCard(right), question=question)
        one = Wanted(values=in_bytes(right), question=question)
        on_cpu, on_card = mismatch(one, in_bytes(got)), mismatch(ours, OnCard(got))
        assert agree([(OnCard(got), ours), (OnCard(right), ours)]) == [on_cpu is None, True]
        verdicts.add(on_cpu is None)
        assert (on_cpu is None) == (on_card is None)
        if on_cpu is not None and on_card is not None:
            assert on_cpu[0] == on_card[0]
            assert np.array_equal(np.asarray(on_cpu[1]), np.asarray(on_card[1]))
    assert verdicts == ({True} if name == "none" else {True, False})


def test_an_element_may_be_as_near_to_float64_as_to_eager_on_a_card() -> None:
    exact = torch.linspace(1.0, 2.0, 64, dtype=torch.float64)
    eager, got = (exact * (1 + 3e-4)).float(), exact.float()
    near = Wanted(values=OnCard(exact), question=REAL)
    alone = Wanted(values=OnCard(eager), question=REAL)
    both = replace(alone, exact=near)
    asked = [(got, alone), (got, both), (eager, both), (got * 1.001, both)]
    assert agree([(OnCard(one), which) for one, which in asked]) == [False, True, True, False]


@pytest.mark.parametrize("question", [REAL, SAME_FUNCTION])
def test_a_large_output_is_surely_near_within_the_least_tolerance_of_an_element(
    question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "LOOKED_AT", 1)
    monkeypatch.setattr(compare, "CHUNK", 16)
    right = torch.linspace(-1.0, 1.0, 80, dtype=torch.float64).reshape(8, 10)
    one = Wanted(values=OnCard(right), question=question)
    least = float(min(scale.min() for scale in one.scales)) * question.tolerance
    for share, is_near in ((0.0, True), (0.999, True), (1.001, False), (math.nan, False)):
        got = right.clone()
        got[7, 4] += share * least
        assert one.is_near(OnCard(got)) is is_near
        assert agree([(OnCard(got), one)]) == [not math.isnan(share)]
    assert not one.is_near(OnCard(right.float()))
    assert not Wanted(values=in_bytes(right), question=question).is_near(in_bytes(right))


def test_an_infinity_is_nothing_else_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tolerance relative to it is infinite."""
    monkeypatch.setattr(compare, "LOOKED_AT", 1)
    right = torch.tensor([[torch.inf, -torch.inf, 1.0, 2.0]])
    one = Wanted(values=OnCard(right), question=REAL)
    for place, value in ((0, 5.0), (1, torch.inf), (1, 0.0)):
        got = right.clone()
        got[0, place] = value
        assert agree([(OnCard(got), one), (OnCard(right), one)]) == [False, True]


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
def test_narrow_floats_have_the_values_that_torch_gives_them(kind: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes if kind.itemsize == 1 else codes.to(torch.int16) << 7
    spec = TensorSpec(str(kind).removeprefix("torch."), (256,))
    data = codes.numpy().tobytes()
    assert np.array_equal(decode(spec, data), codes.view(kind).double().numpy(), equal_nan=True)
    one = Wanted(values=Bytes(spec, data), question=real_question(spec.dtype, "fp32"))
    assert agrees(one, data)
    assert not agrees(one, unwritten(spec))


def test_the_first_difference_is_told_with_statistics_and_digits_that_tell_them_apart() -> None:
    right = wanted(np.full((4, 8), 0.5, np.float32), REAL)
    got = np.full((4, 8), 0.5, np.float32)
    got[3, 7] = 1.0
    words = words_of(right, got.tobytes())
    assert words == "output[3, 7]: expected 0.5, got 1; 3% of elements differ, max abs error 0.5"
    right, got = wanted(np.full(100, 1.00012)), np.full(100, 1.00048)
    words = words_of(right, got.tobytes())
    assert words.startswith("output[0]: expected 1.0001, got 1.0005;")
    assert "100% are NaN" in words_of(right, b"\xff" * 800)


class Sums(TorchDispatchMode):
    """Notes how many flags torch adds at once, of each of which it makes an int64."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name == "aten::sum" and args[0].dtype is torch.bool:
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("of_kind", [OnCard, in_bytes])
def test_a_large_output_is_told_by_its_first_difference(
    of_kind: Callable[[torch.Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "MAX_MASK", 16)
    right = torch.ones(8, 10)
    got = right.clone()
    got[4, 3:] = 2.0
    one = Wanted(values=of_kind(right), question=REAL)
    assert one.scales
    with Sums() as sums:
        found = mismatch(one, of_kind(got))
    assert found == ("output[4, 3]: expected 1, got 2; 9% of elements differ", None)
    assert max(sums.sizes, default=0) <= 16
