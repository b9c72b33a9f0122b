"""Library functions against Python's `math`, torch and definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from forge.evalpool.judge.program.dialect import EXTERN
from forge.evalpool.judge.ttir.semantics.approximate import FUNCTIONS
from forge.evalpool.judge.ttir.semantics.externs import FAST, lookup
from forge.evalpool.judge.ttir.semantics.special import bessel_j, bessel_y
from forge.evalpool.judge.ttir.values import Unsupported
from tests.evalpool.ttir_semantics.applying import apply, row


def call(symbol: str, types: str, *operands: Any) -> list[float]:
    names = types.split("->")[0].split()
    arrays = [row(one, name) for one, name in zip(operands, names, strict=True)]
    return apply("tt.extern_elementwise", arrays, types, symbol=symbol)[0].tolist()


@pytest.mark.parametrize("symbol", sorted(EXTERN))
def test_every_function_of_the_closed_list_has_semantics(symbol: str) -> None:
    for one in EXTERN[symbol]:
        names = one.split(" -> ")[0].split(", ")
        found = call(symbol, one.replace(",", ""), *([[1, 2, 3]] * len(names)))
        assert len(found) == 3


def test_an_unknown_function_is_named() -> None:
    with pytest.raises(Unsupported, match="__nv_frobnicate"):
        call("__nv_frobnicate", "f32 -> f32", [1])


POINTS = [-3.7, -1.0, -0.3, 0.1, 0.5, 0.9, 2.5, 10.0]


@pytest.mark.parametrize(
    "name", ["erf", "erfc", "erfinv", "lgamma", "atanh", "expm1", "log1p", "i0", "i1"]
)
def test_special_functions_equal_those_of_torch(name: str) -> None:
    symbol = {"i0": "cyl_bessel_i0", "i1": "cyl_bessel_i1"}.get(name, name)
    wanted = getattr(torch.special if name in ("i1", "erfc") else torch, name)(
        torch.tensor(POINTS, dtype=torch.float64)
    )
    found = np.array(call(f"__nv_{symbol}", "f64 -> f64", POINTS))
    assert np.allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-14, equal_nan=True)
    single = np.array(call(f"__nv_{symbol}f", "f32 -> f32", POINTS))
    assert np.allclose(single, wanted.float().numpy(), rtol=1e-6, equal_nan=True)


BESSEL = {
    0.5: (0.93846980724081, 0.24226845767487, -0.44451873350671, -1.4714723926702),
    3.0: (-0.26005195490193, 0.33905895852594, 0.37685001001279, 0.3246744247918),
    24.5: (0.023697433734068, -0.15897841181933, -0.15942871774975, -0.026954655331885),
    55.0: (-0.074548302648237, -0.078250038308685, -0.077569178730413, 0.073846265432578),
}
"""J0, J1, Y0 and Y1, by mpmath."""


@pytest.mark.parametrize("x", BESSEL)
def test_bessel_functions_have_ten_digits(x: float) -> None:
    point = np.array([x])
    found = [bessel_j(0, point), bessel_j(1, point), bessel_y(0, point), bessel_y(1, point)]
    assert [one[0] for one in found] == pytest.approx(list(BESSEL[x]), rel=1e-10)


def test_roundings_of_halves() -> None:
    halves = [0.5, 1.5, 2.5, -0.5, -1.5]
    assert call("__nv_rintf", "f32 -> f32", halves) == [0, 2, 2, 0, -2]
    assert call("__nv_roundf", "f32 -> f32", halves) == [1, 2, 3, -1, -2]
    assert call("__nv_float2int_rn", "f32 -> i32", halves) == [0, 2, 2, 0, -2]
    assert call("__nv_llroundf", "f32 -> i64", halves) == [1, 2, 3, -1, -2]


def test_directions_of_conversions() -> None:
    odd = 2**24 + 1
    assert call("__nv_int2float_rd", "i32 -> f32", [odd, -odd]) == [2**24, -(2**24) - 2]
    assert call("__nv_int2float_ru", "i32 -> f32", [odd, -odd]) == [2**24 + 2, -(2**24)]
    top = 2**63 - 1
    assert call("__nv_ll2double_rz", "i64 -> f64", [top]) == [2.0**63 - 1024]
    assert call("__nv_double2float_rz", "f64 -> f32", [0.1]) == [float(np.float32(0.1)) - 2**-27]
    assert call("__nv_fadd_ru", "f32 f32 -> f32", [1], [1e-10]) == [1 + 2**-23]


def test_numbers_and_their_bits() -> None:
    assert call("__nv_float_as_int", "f32 -> i32", [1.0]) == [0x3F800000]
    assert call("__nv_hiloint2double", "i32 i32 -> f64", [0x3FF00000], [0]) == [1.0]
    assert call("__nv_brev", "i32 -> i32", [1, 6]) == [-(2**31), 0x60000000]
    assert call("__nv_byte_perm", "i32 i32 i32 -> i32", [0x33221100], [0x77665544], [0x4321]) == [
        0x44332211
    ]
    assert call("__nv_ffs", "i32 -> i32", [0, 8]) == [0, 4]
    assert call("__nv_ilogbf", "f32 -> i32", [8, 0.3]) == [3, -2]


def test_arithmetic_of_the_library() -> None:
    assert call("__nv_fmodf", "f32 f32 -> f32", [-7.5], [2]) == [-1.5]
    assert call("__nv_remainder", "f64 f64 -> f64", [7, 5, -7], [4, 2, 4]) == [-1, 1, 1]
    assert call("__nv_powf", "f32 f32 -> f32", [2, -8], [10, 3]) == [1024, -512]
    assert call("__nv_hypotf", "f32 f32 -> f32", [3e30], [4e30]) == pytest.approx([5e30], rel=1e-6)
    assert call("__nv_rnorm3df", "f32 f32 f32 -> f32", [1], [2], [2]) == pytest.approx([1 / 3])
    assert call("__nv_sinpi", "f64 -> f64", [1e6, 0.5, -1.5]) == [0, 1, 1]
    assert call("__nv_saturatef", "f32 -> f32", [-1, 0.5, 2, math.nan]) == [0, 0.5, 1, 0]
    assert call("__nv_jn", "i32 f64 -> f64", [2], [3.0]) == pytest.approx([0.486091260585891])


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_fast_functions_have_an_error_within_what_a_tolerance_allows_for_small_operands(
    name: str,
) -> None:
    x = np.linspace(0.6, 1.4, 200, dtype=np.float32)
    operands = [x, x[::-1].copy()] if name in ("fast_powf", "fast_fdividef") else [x]
    found = lookup(f"__nv_{name}")
    assert found is not None
    exact = FAST[name](*(one.astype(np.float64) for one in operands))
    error = np.abs(found(*operands) - exact)
    assert 0 < (error / (1 + np.abs(exact))).max() < 1e-5
