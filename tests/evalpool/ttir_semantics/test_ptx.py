"""Inline assembly as kernels write it."""

from __future__ import annotations

import numpy as np
import pytest

from forge.evalpool.judge.ttir.values import Array, Unsupported
from tests.evalpool.ttir_semantics.applying import apply, apply_all, row

X = row([-2.5, -0.3, 0.1, 0.7, 1.0, 3.0, 100.0, 0.0], "f32")


def asm(text: str, constraints: str, operands: list[Array], types: str, pack: int = 1) -> Array:
    return apply(
        "tt.elementwise_inline_asm",
        operands,
        types,
        asm_string=text,
        constraints=constraints,
        packed_element=pack,
    )


@pytest.mark.parametrize(
    ("instruction", "function"),
    [
        ("tanh.approx.f32", np.tanh),
        ("ex2.approx.ftz.f32", np.exp2),
        ("rcp.approx.f32", lambda x: 1 / x),
        ("abs.f32", np.abs),
    ],
)
def test_functions_of_one_operand(instruction: str, function: np.ufunc) -> None:
    found = asm(f"{instruction} $0, $1;", "=f,f", [X], "f32 -> f32")
    with np.errstate(divide="ignore", over="ignore"):
        assert np.allclose(found, function(X), rtol=1e-6)


def test_an_approximate_instruction_has_the_documented_error() -> None:
    far = row(np.linspace(-300, 300, 1000), "f32")
    found = asm("sin.approx.f32 $0, $1;", "=f,f", [far], "f32 -> f32")
    error = np.abs(found - np.sin(far.astype(np.float64)))
    assert 2.0**-16 < error.max() < 2.0**-14.6
    assert abs(np.mean(found - np.sin(far.astype(np.float64)))) < error.max() / 8
    again = asm("sin.approx.f32 $0, $1;", "=f,f", [far[:, ::-1].copy()], "f32 -> f32")
    assert np.array_equal(found[:, ::-1], again)


def test_tf32_rounds_halves_away_from_zero() -> None:
    halves = row([1 + 2.0**-11, -1 - 2.0**-11], "f32")
    found = asm("cvt.rna.tf32.f32 $0, $1;", "=r,r", [halves], "f32 -> f32")
    assert found[0].tolist() == [1 + 2.0**-10, -1 - 2.0**-10]


def test_a_predicate_selects() -> None:
    text = "{ .reg .pred p; setp.gt.f32 p, $1, 0f3F000000; selp.f32 $0, $1, 0.0, p; }"
    assert (asm(text, "=f,f", [X], "f32 -> f32") == np.where(X > 0.5, X, 0)).all()
    guarded = "{ .reg .pred p; mov.b32 $0, 0; setp.lt.f32 p, $1, 0.0; @!p mov.b32 $0, $1; }"
    assert (asm(guarded, "=r,r", [X], "f32 -> f32") == np.maximum(X, 0)).all()


def test_two_floats_pack_into_a_register_the_first_on_top() -> None:
    found = asm("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [X, X * 2], "f32 f32 -> i32")
    bits = found.view(np.uint32)
    assert bits[0, 4] == 0x40003F80


def test_bytes_unpack_by_four() -> None:
    text = """{
        .reg .b8 t<4>;   // a comment
        mov.b32 {t0, t1, t2, t3}, $4;
        cvt.s32.s8 $0, t0; cvt.s32.s8 $1, t1; cvt.s32.s8 $2, t2; cvt.s32.s8 $3, t3;
    }"""
    numbers = row(np.arange(-8, 8), "i8")
    found = asm(text, "=r,=r,=r,=r,r", [numbers], "i8 -> i32", pack=4)
    assert found[0].tolist() == list(range(-8, 8))


def test_pairs_of_bf16_multiply_at_once() -> None:
    a, b = row([1.5, -2.0, 3.0, 0.5], "bf16"), row([2.0], "bf16")
    found = asm("fma.rn.bf16x2 $0, $1, $2, $1;", "=r,r,r", [a, b], "bf16 bf16 -> bf16", pack=2)
    assert found[0].tolist() == [4.5, -6.0, 9.0, 1.5]


def test_eight_bit_floats_become_halves() -> None:
    text = "cvt.rn.f16x2.e4m3x2 $0, $1;"
    numbers = row([1.0, -448.0, 0.5, 2.0], "f8E4M3FN")
    found = asm(text, "=r,h", [numbers], "f8E4M3FN -> f16", pack=2)
    assert found[0].tolist() == [1.0, -448.0, 0.5, 2.0]


def test_bits_by_a_table_and_by_places() -> None:
    a, b, c = row([0b1100], "i32"), row([0b1010], "i32"), row([0b0110], "i32")
    types = "i32 i32 i32 -> i32"
    assert asm("lop3.b32 $0, $1, $2, $3, 0x96;", "=r,r,r,r", [a, b, c], types)[0, 0] == 0b0000
    assert asm("lop3.b32 $0, $1, $2, $3, 0xEA;", "=r,r,r,r", [a, b, c], types)[0, 0] == 0b1110
    assert asm("bfe.u32 $0, $1, 4, 8;", "=r,r", [row([0xABC], "i32")], "i32 -> i32")[0, 0] == 0xAB
    assert asm("prmt.b32 $0, $1, $1, 0x0123;", "=r,r", [row([1], "i32")], "i32 -> i32")[0, 0] == (
        1 << 24
    )


def test_two_results() -> None:
    first, second = apply_all(
        "tt.elementwise_inline_asm",
        [row([7], "i32"), row([2], "i32")],
        "i32 i32 -> i32 i32",
        asm_string="add.s32 $0, $2, $3; mul.lo.s32 $1, $2, $3;",
        constraints="=r,=r,r,r",
        packed_element=1,
    )
    assert (first[0, 0], second[0, 0]) == (9, 14)


def test_the_order_of_launches_computes_nothing() -> None:
    text = "griddepcontrol.wait; // dummy $0"
    assert asm(text, "=r", [], " -> i32").tolist() == [0]


@pytest.mark.parametrize("text", ["dp4a.u32.u32 $0, $1, $1, $1;", "frob $0, $1;", "nonsense"])
def test_an_unknown_statement_is_named(text: str) -> None:
    with pytest.raises(Unsupported, match=text.split()[0].split(".")[0]):
        asm(text, "=r,r", [row([1], "i32")], "i32 -> i32")
