"""Semantics of elements against Python, torch and exact fractions: integers, floats, libraries."""

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.program.dialect import EXTERN
from forge.evalpool.judge.ttir.plan import plan_of
from forge.evalpool.judge.ttir.semantics import OPERATIONS, lookup, multiply_high_signed
from forge.evalpool.judge.ttir.tree import Block, Scalar, Signature
from forge.evalpool.judge.ttir.values import FORMATS, Array, Unsupported, dtype_of, round_to


def kinds(names: str, shape: tuple[int, ...]) -> tuple[Block, ...]:
    """Blocks of one shape of each element type."""
    return tuple(Block(shape, Scalar(name)) for name in names.split())


def apply_all(name: str, operands: list[Array], types: str, **attributes: Any) -> list[Array]:
    """Results of an operation; `types` is `i32 i32 -> i1`, the blocks are those of the arrays."""
    ins, outs = types.split("->")
    shape = np.broadcast_shapes(*(one.shape for one in operands))[1:]
    signature = Signature(kinds(ins, shape), kinds(outs, shape))
    with np.errstate(all="ignore"):
        return OPERATIONS[name](operands, signature, attributes)


def apply(name: str, operands: list[Array], types: str, **attributes: Any) -> Array:
    """The only result of an operation."""
    (result,) = apply_all(name, operands, types, **attributes)
    return result


def row(numbers: Any, name: str) -> Array:
    """One instance of a block `[1, N]` of an element type."""
    return np.asarray(numbers, dtype_of(Scalar(name)))[None]


# --- integers


PREDICATES = ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "uge"]
WIDTHS = (8, 16, 32, 64)


def wrap(value: int, bits: int) -> int:
    """The signed integer of the low bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def plain(value: int, bits: int) -> int:
    """The unsigned integer of the low bits."""
    return value & ((1 << bits) - 1)


def quotient(a: int, b: int) -> int:
    """Division towards zero; all bits set for a divisor of 0."""
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return a - quotient(a, b) * b if b else a


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    """A width, and two lists of integers of it, the extremes among them."""
    bits = draw(st.sampled_from(WIDTHS))
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    number = st.one_of(
        st.sampled_from([low, low + 1, -1, 0, 1, 2, 3, high]), st.integers(low, high)
    )
    left = draw(st.lists(number, min_size=4, max_size=4))
    right = draw(st.lists(number, min_size=1, max_size=4).filter(lambda one: len(one) in (1, 4)))
    return bits, left, right


SIGNED: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": quotient,
    "arith.remsi": remainder,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.maxsi": max,
    "arith.minsi": min,
}
UNSIGNED: dict[str, Callable[[int, int], int]] = {
    "arith.divui": quotient,
    "arith.remui": remainder,
    "arith.maxui": max,
    "arith.minui": min,
}


@settings(max_examples=200)
@given(name=st.sampled_from([*SIGNED, *UNSIGNED]), case=pairs())
def test_arithmetic_wraps(name: str, case: tuple[int, list[int], list[int]]) -> None:
    bits, left, right = case
    kind = f"i{bits}"
    found = apply(name, [row(left, kind), row(right, kind)], f"{kind} {kind} -> {kind}")[0]
    others = right * 4 if len(right) == 1 else right
    if name in SIGNED:
        wanted = [wrap(SIGNED[name](a, b), bits) for a, b in zip(left, others, strict=True)]
    else:
        wanted = [
            wrap(UNSIGNED[name](plain(a, bits), plain(b, bits)), bits)
            for a, b in zip(left, others, strict=True)
        ]
    assert found.tolist() == wanted


@settings(max_examples=50)
@given(case=pairs(), amount=st.integers(0, 70))
def test_shifts_beyond_the_width_shift_everything_out(
    case: tuple[int, list[int], list[int]], amount: int
) -> None:
    bits, left, _ = case
    kind = f"i{bits}"
    operands = [row(left, kind), row([amount], kind)]
    types = f"{kind} {kind} -> {kind}"
    assert apply("arith.shli", operands, types)[0].tolist() == [
        wrap(a << amount, bits) for a in left
    ]
    assert apply("arith.shrsi", operands, types)[0].tolist() == [a >> amount for a in left]
    assert apply("arith.shrui", operands, types)[0].tolist() == [
        wrap(plain(a, bits) >> amount, bits) for a in left
    ]


@settings(max_examples=50)
@given(case=pairs())
def test_products_of_twice_the_width(case: tuple[int, list[int], list[int]]) -> None:
    bits, left, right = case
    kind = f"i{bits}"
    operands = [row(left, kind), row(right * (4 // len(right)), kind)]
    products = list(zip(left, right * (4 // len(right)), strict=True))
    high = multiply_high_signed(*operands)
    assert high[0].tolist() == [wrap(a * b >> bits, bits) for a, b in products]
    high_unsigned = apply("tt.mulhiui", operands, f"{kind} {kind} -> {kind}")
    unsigned = [plain(a, bits) * plain(b, bits) >> bits for a, b in products]
    assert high_unsigned[0].tolist() == [wrap(one, bits) for one in unsigned]


@given(predicate=st.sampled_from(PREDICATES), case=pairs())
def test_comparisons(predicate: str, case: tuple[int, list[int], list[int]]) -> None:
    bits, left, right = case
    kind = f"i{bits}"
    operands = [row(left, kind), row(right, kind)]
    found = apply("arith.cmpi", operands, f"{kind} {kind} -> i1", predicate=predicate)
    view = plain if predicate[0] == "u" else wrap
    pairs_ = [(view(a, bits), view(b, bits)) for a, b in zip(left, right * 4, strict=False)]
    word = predicate[-2:]
    holds = getattr(operator, word)
    assert found[0].tolist() == [holds(a, b) for a, b in pairs_]


def test_booleans_add_without_carry_and_are_negative_where_signed() -> None:
    a, b = row([0, 0, 1, 1], "i1"), row([0, 1, 0, 1], "i1")
    assert apply("arith.addi", [a, b], "i1 i1 -> i1")[0].tolist() == [False, True, True, False]
    assert apply("arith.muli", [a, b], "i1 i1 -> i1")[0].tolist() == [False, False, False, True]
    less = apply("arith.cmpi", [a, b], "i1 i1 -> i1", predicate="slt")
    assert less[0].tolist() == [False, False, True, False]
    assert apply("arith.extsi", [a], "i1 -> i32")[0].tolist() == [0, 0, -1, -1]
    assert apply("arith.extui", [a], "i1 -> i32")[0].tolist() == [0, 0, 1, 1]
    assert apply("arith.sitofp", [a], "i1 -> f32")[0].tolist() == [0, 0, -1, -1]


# --- floats


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
    found = apply("arith.fptosi", [values], "f32 -> i32")[0].tolist()
    assert found == [1, -1, top, low, top, low, 0]
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
    assert single_precision == np.float32(value)
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


TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f8E5M2": torch.float8_e5m2}
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


# --- externs


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


@pytest.mark.parametrize("symbol", ["", "sinf", "__nv_", "__nv_fast_", "__nv_f", "__nv_tgammaf"])
def test_a_symbol_of_no_known_function_has_none(symbol: str) -> None:
    assert lookup(symbol) is None


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


SPECIAL = ("erf", "erfc", "erfinv", "atanh", "expm1", "log1p", "tanh", "atan", "asinh", "rsqrt")
OF_MATH = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf")


@pytest.mark.parametrize("name", sorted({*SPECIAL, *OF_MATH}))
def test_functions_are_within_two_units_of_torch_s_last_place(name: str) -> None:
    points = np.concatenate([np.linspace(0.01, 20, 500), np.logspace(-6, -1, 100)])
    points = np.concatenate([points, -points]).astype(np.float32)
    wanted = getattr(torch, name)(torch.from_numpy(points.astype(np.float64))).numpy()
    unit = np.spacing(np.abs(wanted).astype(np.float32))
    results = [call(f"__nv_{name}f", "f32 -> f32", points)]
    if name in OF_MATH:
        results.append(apply(f"math.{name}", [row(points, "f32")], "f32 -> f32")[0].tolist())
    for found in results:
        is_close = np.abs(np.array(found) - wanted) < 2 * unit
        assert (is_close | ~np.isfinite(wanted)).all()
    double = call(f"__nv_{name}", "f64 -> f64", points)
    assert np.allclose(double, wanted, rtol=1e-12, atol=1e-14, equal_nan=True)


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
