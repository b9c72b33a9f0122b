"""Elementary functions with the error that a card has."""

from __future__ import annotations

import numpy as np
import pytest

from forge.evalpool.judge.ttir.evaluate import Address, launch
from forge.evalpool.judge.ttir.plan.dispatch import plan_of
from tests.evalpool.ttir.kernels import kernel, memory_of, pointers

WIDE = "tensor<16xf32>"


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
