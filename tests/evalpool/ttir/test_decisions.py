"""Decisions by data: which of their sides a launch takes, and what they compare with."""

from typing import Any

import numpy as np
import pytest

from forge.evalpool.judge.program.format import Kernel, Options
from forge.evalpool.judge.ttir.decisions import note_all, open_sides
from forge.evalpool.judge.ttir.plan import plan_of
from tests.evalpool.ttir.kernels import kernel, pointers, run

BLOCK, MASK = "tensor<16xf32>", "tensor<16xi1>"
CHOICE = """
    %n = arith.constant dense<10> : tensor<16xi32>
    %c = arith.constant dense<3.000000e+00> : tensor<16xf32>
    %two = arith.constant dense<2.000000e+00> : tensor<16xf32>
    %zero = arith.constant dense<0.000000e+00> : tensor<16xf32>
    %in = arith.cmpi slt, %lane, %n : tensor<16xi32>
    %v = tt.load %x.at, %in, %zero : tensor<16x!tt.ptr<f32>>
    %w = arith.mulf %v, %two : tensor<16xf32>
    %is = {condition}
    %z = arith.select %is, {choices} : tensor<16xi1>, tensor<16xf32>
    tt.store %y.at, %z, %in : tensor<16x!tt.ptr<f32>>
"""


def opened(condition: str, x: list[float], choices: str = "%zero, %v") -> list[list[Any]]:
    """Sides that are open of a choice between numbers, ten of which are loaded, after a launch."""
    body = CHOICE.format(condition=condition, choices=choices)
    made = kernel("%x: !tt.ptr<f32>, %y: !tt.ptr<f32>", pointers("x") + pointers("y") + body)
    seen: dict[Any, int] = {}
    values = np.zeros(16, np.float32)
    values[: len(x)] = x
    run(made, 1, values, np.zeros(16, np.float32), seen=seen)
    noted: Any = {}
    one = Kernel(name="k", ttir=made, options=Options(), parameters=())
    note_all(noted, plan_of(made).decisions, seen, one, ["0", "any"])
    return open_sides(noted)


EQUAL = "arith.cmpf oeq, %w, %c : tensor<16xf32>"


@pytest.mark.parametrize(
    ("x", "is_open"), [([1.0] * 10, True), ([1.5] * 10, True), ([1.0] * 9 + [1.5], False)]
)
def test_a_condition_by_data_is_open_until_both_sides_are_taken(
    x: list[float], is_open: bool
) -> None:
    assert bool(opened(EQUAL, x)) == is_open


def test_an_open_condition_names_its_side_what_an_element_would_have_to_be_and_the_input() -> None:
    ((_, words, constants, memory),) = opened(EQUAL, [1.0] * 10)
    assert "tl.where" in words
    assert "false" in words
    assert 1.5 in constants  # twice it is 3
    assert memory == ["0"]


def test_lanes_that_a_load_masks_out_take_no_side() -> None:
    is_zero = "arith.cmpf oeq, %v, %zero : tensor<16xf32>"
    assert opened(is_zero, [1.0] * 10, choices="%c, %v")
    assert not opened(is_zero, [1.0] * 9 + [0.0], choices="%c, %v")


def test_a_side_on_which_both_values_are_equal_is_not_taken() -> None:
    is_zero = "arith.cmpf oeq, %v, %zero : tensor<16xf32>"
    assert opened(is_zero, [1.0] * 9 + [0.0], choices="%zero, %v")


def test_a_condition_by_places_alone_is_no_decision() -> None:
    assert not opened("arith.cmpi slt, %lane, %n : tensor<16xi32>", [1.0] * 10)
