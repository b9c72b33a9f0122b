"""Float operations and conversions against torch and exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.ttir.tree import Scalar
from forge.evalpool.judge.ttir.values import FORMATS, decode, round_to
from tests.evalpool.ttir_semantics.applying import apply, row

NARROW = {"f16": torch.float16, "bf16": torch.bfloat16}
NAN, INF = math.nan, math.inf

single_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
moderate = st.floats(-(2.0**40), 2.0**40, width=32).filter(lambda x: x == 0 or abs(x) > 1e-10)


def narrow_operands(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(2, 2000, generator=generator) * 30
    numbers[:, :8] = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1e4, -6e4, 1e-7])
    left, right = numbers.to(NARROW[name])
    return left, right.flip(0)


def as_values(tensor: torch.Tensor, name: str) -> np.ndarray:
    return row(tensor.float().numpy(), name)


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div"])
def test_narrow_arithmetic_is_correctly_rounded(name: str, operation: str) -> None:
    left, right = narrow_operands(name)
    wanted = getattr(torch, operation)(left, right)
    operands = [as_values(left, name), as_values(right, name)]
    found = apply(f"arith.{operation}f", operands, f"{name} {name} -> {name}")
    assert np.array_equal(found[0].astype(np.float32), wanted.float().numpy(), equal_nan=True)


def exact_single(value: Fraction) -> float:
    """A number of float32's normal range, rounded by definition."""
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length(), -125)
    if Fraction(2) ** exponent > size:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, -126) - 23)
    below, rest = divmod(size, step)
    up = 2 * rest > step or (2 * rest == step and below % 2 == 1)
    return float((below + up) * step * (1 if value > 0 else -1))


@settings(max_examples=50)
@given(a=moderate, b=moderate, c=moderate, near=st.booleans())
def test_a_product_is_not_rounded_before_it_is_added_to(
    a: float, b: float, c: float, near: bool
) -> None:
    if near:
        c = float(np.float32(-a * b))
    found = apply("math.fma", [row([one], "f32") for one in (a, b, c)], "f32 f32 f32 -> f32")
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert float(found[0, 0]) == pytest.approx(float(exact), rel=2.0**-23, abs=2.0**-149)


def test_minimum_and_maximum_of_nan() -> None:
    left, right = row([1, NAN, 1, NAN], "f32"), row([2, 2, NAN, NAN], "f32")
    types = "f32 f32 -> f32"
    maxnum = apply("arith.maxnumf", [left, right], types)
    assert np.array_equal(maxnum[0], [2, 2, 1, NAN], equal_nan=True)
    maximum = apply("arith.maximumf", [left, right], types)
    assert np.array_equal(maximum[0], [2, NAN, NAN, NAN], equal_nan=True)
    bounds = [row([0], "f32"), row([1.5], "f32")]
    clamped = apply("tt.clampf", [left, *bounds], "f32 f32 f32 -> f32", propagateNan="none")
    assert clamped[0].tolist() == [1, 0, 1, 0]
    kept = apply("tt.clampf", [left, *bounds], "f32 f32 f32 -> f32", propagateNan="all")
    assert np.array_equal(kept[0], [1, NAN, 1, NAN], equal_nan=True)


@pytest.mark.parametrize(
    ("predicate", "wanted"),
    [
        ("oeq", [0, 1, 0, 0]),
        ("one", [1, 0, 1, 0]),
        ("olt", [1, 0, 0, 0]),
        ("oge", [0, 1, 1, 0]),
        ("ord", [1, 1, 1, 0]),
        ("uno", [0, 0, 0, 1]),
        ("ueq", [0, 1, 0, 1]),
        ("une", [1, 0, 1, 1]),
        ("ult", [1, 0, 0, 1]),
        ("ule", [1, 1, 0, 1]),
        ("ugt", [0, 0, 1, 1]),
        ("uge", [0, 1, 1, 1]),
    ],
)
def test_predicates_of_floats(predicate: str, wanted: list[int]) -> None:
    left, right = row([1, 2, 3, NAN], "f32"), row([2, 2, 2, 2], "f32")
    found = apply("arith.cmpf", [left, right], "f32 f32 -> i1", predicate=predicate)
    assert found[0].tolist() == [bool(one) for one in wanted]


def test_a_scalar_condition_selects_whole_blocks() -> None:
    condition = np.array([True, False])
    left, right = row([1, 2], "f32"), row([3, 4], "f32")
    found = apply("arith.select", [condition[:, None], left, right], "i1 f32 f32 -> f32")
    assert found.tolist() == [[1, 2], [3, 4]]


def test_floats_become_integers_as_in_hardware() -> None:
    values = row([1.9, -1.9, 3e9, -3e9, INF, -INF, NAN], "f32")
    top, low = 2**31 - 1, -(2**31)
    assert apply("arith.fptosi", [values], "f32 -> i32")[0].tolist() == [
        1,
        -1,
        top,
        low,
        top,
        low,
        0,
    ]
    unsigned = apply("arith.fptoui", [values], "f32 -> i32").view(np.uint32)
    assert unsigned[0].tolist() == [1, 0, 3000000000, 0, 2**32 - 1, 0, 0]
    wide = apply("arith.fptosi", [values], "f32 -> i64")
    assert wide[0, 4:].tolist() == [2**63 - 1, -(2**63), -(2**63)]
    assert apply("arith.fptosi", [row([300.7, -129], "f32")], "f32 -> i8")[0].tolist() == [44, 127]


@settings(max_examples=50)
@given(value=st.integers(-(1 << 63), (1 << 63) - 1))
def test_integers_become_the_nearest_float(value: int) -> None:
    found = apply("arith.sitofp", [row([value], "i64")], "i64 -> f64")[0, 0]
    assert found == float(value)
    single_precision = apply("arith.sitofp", [row([value], "i64")], "i64 -> f32")[0, 0]
    assert float(single_precision) == exact_single(Fraction(value))
    unsigned = apply("arith.uitofp", [row([value], "i64")], "i64 -> f64")[0, 0]
    assert unsigned == float(value % (1 << 64))


def test_conversions_of_floats() -> None:
    values = row([1.0009, 70000, 1e-8, -2.5, INF], "f32")
    half = apply("arith.truncf", [values], "f32 -> f16")
    assert half.dtype == np.float16
    assert half[0].tolist() == torch.tensor(values[0]).half().tolist()
    toward_zero = apply("tt.fp_to_fp", [values], "f32 -> f16", rounding="rtz")
    assert toward_zero[0].tolist() == [1.0, 65504, 0, -2.5, INF]
    fp8 = apply("tt.fp_to_fp", [values], "f32 -> f8E4M3FN", rounding="rtne")
    assert fp8[0].tolist() == [1, 448, 0, -2.5, 448]
    assert apply("arith.extf", [half], "f16 -> f64").dtype == np.float64


@pytest.mark.parametrize("name", ["f16", "bf16", "f8E5M2", "f8E4M3FN"])
def test_bits_survive_a_bitcast_and_back(name: str) -> None:
    bits = {"f16": 16, "bf16": 16}.get(name, 8)
    codes = np.arange(1 << bits, dtype=f"u{bits // 8}").view(f"i{bits // 8}")[None]
    values = apply("tt.bitcast", [codes], f"i{bits} -> {name}")
    back = apply("tt.bitcast", [values], f"{name} -> i{bits}")
    number = ~np.isnan(values.astype(np.float32))
    assert (back[number] == codes[number]).all()


@pytest.mark.parametrize(
    "name", ["exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf"]
)
def test_functions_are_within_two_units_of_the_last_place(name: str) -> None:
    values = np.concatenate([np.linspace(0.01, 20, 500), np.logspace(-6, -1, 100)])
    values = row(values.astype(np.float32), "f32")
    wanted = getattr(torch, name)(torch.from_numpy(values[0].astype(np.float64))).numpy()
    found = apply(f"math.{name}", [values], "f32 -> f32")
    assert found.dtype == np.float32
    units = np.abs(found[0] - wanted) / np.spacing(np.abs(wanted).astype(np.float32))
    assert units.max() < 2


TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E5M2": torch.float8_e5m2,
}
"""Formats in which torch does not saturate, in any of its versions."""


def many_floats() -> np.ndarray:
    """Floats of every exponent: around each number of 16 bits, and random ones."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint64)
    bits = [high, high | 0x7FFF, high | 0x8000, high | 0x8001, random.astype(np.uint32)]
    return np.concatenate(bits).view(np.float32)


def same(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    equal = (left == right) & (np.signbit(left) == np.signbit(right))
    return equal | (np.isnan(left) & np.isnan(right))


@pytest.mark.parametrize("wide", [np.float32, np.float64])
@pytest.mark.parametrize("name", TORCH)
def test_rounding_to_nearest_equals_that_of_torch(name: str, wide: type) -> None:
    values = many_floats()
    wanted = torch.from_numpy(values).to(TORCH[name]).float().numpy()
    with np.errstate(all="ignore"):
        found = round_to(values.astype(wide), name)
    assert same(found, wanted).all()


@pytest.mark.parametrize("name", ["f16", "f8E4M3FN", "f8E5M2"])
def test_saturation_keeps_numbers_finite(name: str) -> None:
    values = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, 1.0], np.float32)
    limit = FORMATS[name].max
    for wide in (np.float32, np.float64):
        with np.errstate(all="ignore"):
            found = round_to(values.astype(wide), name, saturate=True)
        assert same(found, np.array([limit, -limit, limit, -limit, np.nan, 1], np.float32)).all()


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("f8")])
def test_every_number_of_8_bits_rounds_to_itself(name: str) -> None:
    numbers = decode(np.arange(256, dtype=np.uint8), Scalar(name))
    with np.errstate(all="ignore"):
        assert same(round_to(numbers, name), numbers).all()
    finite = numbers[np.isfinite(numbers)]
    assert finite.max() == FORMATS[name].max


def rounded(value: Fraction, name: str, toward_zero: bool) -> Fraction:
    """Rounding of a small positive or negative number, by its definition."""
    form = FORMATS[name]
    size = abs(value)
    exponent = form.min_exponent
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    step = Fraction(2) ** (exponent - form.mantissa_bits)
    below, rest = divmod(size, step)
    half = step / 2
    up = not toward_zero and (rest > half or (rest == half and below % 2 == 1))
    return (below + up) * step * (1 if value > 0 else -1)


@given(
    value=st.floats(-200, 200, width=32),
    name=st.sampled_from(["f16", "bf16", "tf32", "f8E4M3FN", "f8E5M2"]),
    toward_zero=st.booleans(),
)
def test_every_direction_rounds_as_defined(value: float, name: str, toward_zero: bool) -> None:
    with np.errstate(all="ignore"):
        found = round_to(np.array([value], np.float32), name, toward_zero=toward_zero)[0]
    if abs(value) > 1e-30:
        assert Fraction(float(found)) == rounded(Fraction(value), name, toward_zero)
