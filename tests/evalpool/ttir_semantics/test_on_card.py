"""Rounding as of a card: fused products and sums, elementary functions with an error."""

from __future__ import annotations

import numpy as np
import pytest

from forge.evalpool.judge.ttir.evaluate import Address, launch
from forge.evalpool.judge.ttir.plan import plan_of
from tests.evalpool.ttir.kernels import kernel, memory_of, pointers

A = np.float32(1 + 2**-12)
SQUARE = np.float32(A * A)
LOST = float(A) ** 2 - float(SQUARE)
"""Difference of the exact square from the rounded one."""
WIDE = "tensor<16xf32>"
SPLAT = f"""
    %as = tt.splat %a : f32 -> {WIDE}
    %ks = tt.splat %k : f32 -> {WIDE}
    %p = arith.mulf %as, %as : {WIDE}
"""
SUMS = {
    "product - k": (f"%v = arith.subf %p, %ks : {WIDE}", 1),
    "k - product": (f"%v = arith.subf %ks, %p : {WIDE}", -1),
    "product + (-k)": (f"%m = arith.negf %ks : {WIDE}\n    %v = arith.addf %p, %m : {WIDE}", 1),
    "product - product": (f"%v = arith.subf %p, %p : {WIDE}", 1),
}


def run(body: str, *, as_card: bool, fuses: bool = True) -> np.ndarray:
    y = np.zeros(16, np.float32)
    text = kernel(
        "%y: !tt.ptr<f32>, %a: f32, %k: f32",
        f"{pointers('y')}{body}\n    tt.store %y.at, %v : tensor<16x!tt.ptr<f32>>",
    )
    arguments = [Address(0), float(A), float(SQUARE)]
    memory = memory_of(y)
    launch(plan_of(text), "k", (1, 1, 1), arguments, memory, as_card=as_card, fuses=fuses)
    return y


@pytest.mark.parametrize("form", SUMS)
def test_a_product_keeps_its_bits_in_a_sum_where_a_launch_contracts(form: str) -> None:
    sum_of, sign = SUMS[form]
    assert not run(SPLAT + sum_of, as_card=False).any()
    assert run(SPLAT + sum_of, as_card=True).tolist() == [sign * LOST] * 16


def test_a_kernel_that_is_compiled_without_fusion_rounds_twice() -> None:
    body = SPLAT + SUMS["product - k"][0]
    assert not run(body, as_card=True, fuses=False).any()


def test_a_product_of_scalars_keeps_its_bits_in_a_sum_of_blocks() -> None:
    body = f"""
    %p = arith.mulf %a, %a : f32
    %ps = tt.splat %p : f32 -> {WIDE}
    %ks = tt.splat %k : f32 -> {WIDE}
    %v = arith.subf %ps, %ks : {WIDE}"""
    assert not run(body, as_card=False).any()
    assert run(body, as_card=True).tolist() == [LOST] * 16


def elementwise(name: str, x: np.ndarray, *others: np.ndarray, as_card: bool) -> np.ndarray:
    y = np.zeros(16, np.float32)
    arrays = [y, x.astype(np.float32), *(one.astype(np.float32) for one in others)]
    names = ["y", "a", "b"][: len(arrays)]
    loads = "".join(
        f"{pointers(one)}    %{one}v = tt.load %{one}.at : tensor<16x!tt.ptr<f32>>\n"
        for one in names[1:]
    )
    values = ", ".join(f"%{one}v" for one in names[1:])
    text = kernel(
        ", ".join(f"%{one}: !tt.ptr<f32>" for one in names),
        f"{pointers('y')}{loads}    %v = {name} {values} : {WIDE}\n"
        "    tt.store %y.at, %v : tensor<16x!tt.ptr<f32>>",
    )
    places = [Address(at) for at in range(len(arrays))]
    launch(plan_of(text), "k", (1, 1, 1), places, memory_of(*arrays), as_card=as_card)
    return y


@pytest.mark.parametrize("name", ["math.exp", "math.sin", "math.rsqrt", "math.log"])
def test_elementary_functions_have_an_error_on_a_card(name: str) -> None:
    x = np.random.default_rng(0).uniform(0.5, 9.5, 16)
    exact, other = (elementwise(name, x, as_card=one) for one in (False, True))
    assert (exact != other).any()
    assert np.allclose(exact, other, rtol=4e-6)
    assert np.array_equal(other, elementwise(name, x, as_card=True))


def test_what_needs_no_rounding_is_exact_on_a_card() -> None:
    whole = np.arange(16)
    assert np.array_equal(elementwise("math.exp2", whole, as_card=True), 2.0**whole)
    assert np.array_equal(elementwise("math.sqrt", whole**2, as_card=True), whole)
    quotients = elementwise("arith.divf", 12 * whole, np.full(16, 3), as_card=True)
    assert np.array_equal(quotients, 4 * whole)
    assert elementwise("math.exp", 0 * whole, as_card=True).tolist() == [1.0] * 16


def test_a_quotient_by_more_than_a_card_divides_by_is_zero_there() -> None:
    large = np.full(16, 2.0**127)
    assert elementwise("arith.divf", large, large, as_card=False).all()
    assert not elementwise("arith.divf", large, large, as_card=True).any()
