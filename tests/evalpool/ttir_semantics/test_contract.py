"""Products and sums that are rounded once, as a card's compiler contracts them."""

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


def run(body: str, *, contracts: bool) -> np.ndarray:
    y = np.zeros(16, np.float32)
    text = kernel(
        "%y: !tt.ptr<f32>, %a: f32, %k: f32",
        f"{pointers('y')}{body}\n    tt.store %y.at, %v : tensor<16x!tt.ptr<f32>>",
    )
    arguments = [Address(0), float(A), float(SQUARE)]
    launch(plan_of(text), "k", (1, 1, 1), arguments, memory_of(y), contracts=contracts)
    return y


@pytest.mark.parametrize("form", SUMS)
def test_a_product_keeps_its_bits_in_a_sum_where_a_launch_contracts(form: str) -> None:
    sum_of, sign = SUMS[form]
    assert not run(SPLAT + sum_of, contracts=False).any()
    assert run(SPLAT + sum_of, contracts=True).tolist() == [sign * LOST] * 16


def test_a_product_of_scalars_keeps_its_bits_in_a_sum_of_blocks() -> None:
    body = f"""
    %p = arith.mulf %a, %a : f32
    %ps = tt.splat %p : f32 -> {WIDE}
    %ks = tt.splat %k : f32 -> {WIDE}
    %v = arith.subf %ps, %ks : {WIDE}"""
    assert not run(body, contracts=False).any()
    assert run(body, contracts=True).tolist() == [LOST] * 16
