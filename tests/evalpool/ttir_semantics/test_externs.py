"""Library functions against Python's `math`, torch and definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from forge.evalpool.judge.program.dialect import EXTERN
from forge.evalpool.judge.ttir.plan.dispatch import plan_of
from forge.evalpool.judge.ttir.semantics.elementwise import lookup
from forge.evalpool.judge.ttir.values import Unsupported
from tests.evalpool.ttir_semantics.applying import apply, row


def call(symbol: str, types: str, *operands: Any) -> list[float]:
    names = types.split("->")[0].split()
    arrays = [row(one, name) for one, name in zip(operands, names, strict=True)]
    return apply("tt.extern_elementwise", arrays, types, symbol=symbol)[0].tolist()


def test_functions_of_the_closed_list_are_evaluated_for_all_their_types() -> None:
    evaluated = [one for one in EXTERN if lookup(one) is not None]
    assert len(evaluated) > 150
    for symbol in evaluated:
        for one in EXTERN[symbol]:
            names = one.split(" -> ")[0].split(", ")
            found = call(symbol, one.replace(",", ""), *([[1, 2, 3]] * len(names)))
            assert len(found) == 3, symbol


@pytest.mark.parametrize(
    "symbol", ["__nv_frobnicate", "__nv_frcp_ru", "__nv_j0f", "__nv_lgammaf", "__ocml_exp_f32"]
)
def test_a_function_that_needs_a_card_is_named(symbol: str) -> None:
    with pytest.raises(Unsupported, match=f"{symbol} needs a card"):
        call(symbol, "f32 -> f32", [1])


def test_a_type_that_needs_a_card_is_named() -> None:
    with pytest.raises(Unsupported, match="f8E4M3FNUZ needs a card"):
        apply("arith.truncf", [row([1.0], "f32")], "f32 -> f8E4M3FNUZ")


def assembly(text: str, *operands: list[float]) -> list[float]:
    types = f"{' '.join(['f32'] * len(operands))} -> f32"
    return apply(
        "tt.elementwise_inline_asm", [row(one, "f32") for one in operands], types, asm_string=text
    )[0].tolist()


def test_one_approximate_instruction_is_evaluated() -> None:
    assert assembly("tanh.approx.f32 $0, $1;", [0.5]) == pytest.approx([math.tanh(0.5)])
    assert assembly("ex2.approx.ftz.f32 $0, $1;", [3.0]) == pytest.approx([8.0])


@pytest.mark.parametrize("text", ["add.f32 $0, $1, $1;", "frob.approx.f32 $0, $1;", "trap;"])
def test_other_assembly_is_refused_before_anything_runs(text: str) -> None:
    attributes = '{constraints = "=f,f", packed_element = 1 : i32, pure = true}'
    line = f'%9 = tt.elementwise_inline_asm "{text}" {attributes} %8 : f32 -> f32'
    module = f"""module {{
  tt.func public @k(%8: f32) {{
    {line}
    tt.return
  }}
}}
"""
    with pytest.raises(Unsupported, match=f"one approximate instruction.*'{text.split()[0]}"):
        plan_of(module)


POINTS = [-3.7, -1.0, -0.3, 0.1, 0.5, 0.9, 2.5, 10.0]


@pytest.mark.parametrize(
    "name", ["erf", "erfc", "erfinv", "atanh", "expm1", "log1p", "tanh", "atan", "asinh", "rsqrt"]
)
def test_special_functions_equal_those_of_torch(name: str) -> None:
    wanted = getattr(torch, name)(torch.tensor(POINTS, dtype=torch.float64))
    found = np.array(call(f"__nv_{name}", "f64 -> f64", POINTS))
    assert np.allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-14, equal_nan=True)
    single = np.array(call(f"__nv_{name}f", "f32 -> f32", POINTS))
    assert np.allclose(single, wanted.float().numpy(), rtol=1e-6, equal_nan=True)


def test_roundings_of_halves() -> None:
    halves = [0.5, 1.5, 2.5, -0.5, -1.5]
    assert call("__nv_rintf", "f32 -> f32", halves) == [0, 2, 2, 0, -2]
    assert call("__nv_roundf", "f32 -> f32", halves) == [1, 2, 3, -1, -2]
    assert call("__nv_float2int_rn", "f32 -> i32", halves) == [0, 2, 2, 0, -2]
    assert call("__nv_llroundf", "f32 -> i64", halves) == [1, 2, 3, -1, -2]


def test_floats_are_the_nearest() -> None:
    odd = 2**24 + 1
    assert call("__nv_int2float_rn", "i32 -> f32", [odd, -odd]) == [2**24, -(2**24)]
    assert call("__nv_ull2double_rn", "i64 -> f64", [-1]) == [2.0**64]
    assert call("__nv_float2int_ru", "f32 -> i32", [1.2, -1.2]) == [2, -1]
    assert call("__nv_fadd_rn", "f32 f32 -> f32", [1], [1e-10]) == [1]
    assert call("__nv_frsqrt_rn", "f32 -> f32", [4]) == [0.5]
    assert call("__nv_fmaf_rn", "f32 f32 f32 -> f32", [2], [3], [1]) == [7]


def test_numbers_and_their_bits() -> None:
    assert call("__nv_float_as_int", "f32 -> i32", [1.0]) == [0x3F800000]
    assert call("__nv_popc", "i32 -> i32", [0, 7, -1]) == [0, 3, 32]
    assert call("__nv_clz", "i32 -> i32", [0, 1, 7, -1]) == [32, 31, 29, 0]


def test_arithmetic_of_the_library() -> None:
    assert call("__nv_fmodf", "f32 f32 -> f32", [-7.5], [2]) == [-1.5]
    assert call("__nv_powf", "f32 f32 -> f32", [2, -8], [10, 3]) == [1024, -512]
    assert call("__nv_powif", "f32 i32 -> f32", [-3], [3]) == [-27]
    assert call("__nv_remainder", "f64 f64 -> f64", [7, 5, -7], [4, 2, 4]) == [-1, 1, 1]
    assert call("__nv_rnorm3df", "f32 f32 f32 -> f32", [1], [2], [2]) == pytest.approx([1 / 3])
    assert call("__nv_sinpi", "f64 -> f64", [0.5, -1.5]) == pytest.approx([1, 1])
    assert call("__nv_saturatef", "f32 -> f32", [-1, 0.5, 2, math.nan]) == [0, 0.5, 1, 0]
    assert call("__nv_fdimf", "f32 f32 -> f32", [3, 1], [1, 3]) == [2, 0]
    assert call("__nv_hypotf", "f32 f32 -> f32", [3e30], [4e30]) == pytest.approx([5e30], rel=1e-6)
    assert call("__nv_fast_fdividef", "f32 f32 -> f32", [1], [4]) == [0.25]
    assert call("__nv_fast_expf", "f32 -> f32", [0]) == [1]
