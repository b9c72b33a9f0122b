"""Reductions, scans and products of blocks against Python loops and torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.ttir.semantics import OPERATIONS, reduce, scan
from forge.evalpool.judge.ttir.tree import Block, Scalar, Signature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.ttir.values import Array


def add(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    return [left[0] + right[0]]


def largest(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    """Value and index of the maximum; the smaller index of equal ones."""
    ahead = (left[0] > right[0]) | ((left[0] == right[0]) & (left[1] < right[1]))
    return [np.where(ahead, a, b) for a, b in zip(left, right, strict=True)]


def affine(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    """Composition of `x -> a x + b`, modulo 2^32: not commutative."""
    return [left[0] * right[0], right[0] * left[1] + right[1]]


def never(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    raise AssertionError("the region is called")


sizes = st.sampled_from([1, 2, 4, 8, 16])
seeds = st.integers(0, 100)


@settings(max_examples=30)
@given(size=sizes, seed=seeds, axis=st.integers(0, 1))
def test_a_maximum_comes_with_its_first_index(size: int, seed: int, axis: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (3, size, 2) if axis == 0 else (3, 2, size)
    values = rng.integers(0, 4, shape).astype(np.float32)
    index = np.arange(size, dtype=np.int32).reshape((1, size, 1) if axis == 0 else (1, 1, size))
    found, where = reduce([values, index], axis, largest, "")
    assert (found == values.max(axis + 1)).all()
    assert (where == values.argmax(axis + 1)).all()


@settings(max_examples=30)
@given(size=sizes, seed=seeds, reverse=st.booleans())
def test_a_scan_keeps_the_order_of_its_elements(size: int, seed: int, reverse: bool) -> None:
    rng = np.random.default_rng(seed)
    factors, terms = rng.integers(-9, 9, (2, 2, size, 3)).astype(np.int32)
    found = scan([factors, terms], 0, reverse, affine, "")
    order = range(size - 1, -1, -1) if reverse else range(size)
    state: list[Array] | None = None
    for place in order:
        one = [factors[:, place], terms[:, place]]
        state = one if state is None else affine(state, one)
        assert all((a[:, place] == b).all() for a, b in zip(found, state, strict=True))


def test_half_precision_sums_round_at_each_level() -> None:
    values = np.array([[2048, 1, 1, 1]], np.float16)
    (found,) = reduce([values], 0, add, "arith.addf")
    assert found.tolist() == [2050]
    (running,) = scan([values], 0, False, add, "arith.addf")
    assert running.dtype == np.float16


@pytest.mark.parametrize(
    ("name", "dtype", "wanted"),
    [
        ("arith.addi", np.int32, [[-2147483648], [6]]),
        ("arith.maxnumf", np.float32, [[3.0], [5.0]]),
        ("arith.xori", np.int32, [[2147483646], [4]]),
    ],
)
def test_orderless_operations_have_loops_of_their_own(
    name: str, dtype: type, wanted: list[list[float]]
) -> None:
    if dtype is np.float32:
        values = np.array([[[3, np.nan, 1]], [[5, 0, np.nan]]], dtype)
    else:
        values = np.array([[[2147483647, 1, 0]], [[1, 5, 0]]], dtype)
    (found,) = reduce([values], 1, never, name)
    assert found.dtype == dtype
    assert found.tolist() == wanted
    if name == "arith.addi":
        (running,) = scan([values], 1, True, never, name)
        assert running.tolist() == [[[-2147483648, 1, 0]], [[6, 5, 0]]]
        assert running.dtype == dtype


M, N, K = 4, 8, 16


def signature(operand: str, result: str) -> Signature:
    a, b = Block((M, K), Scalar(operand)), Block((K, N), Scalar(operand))
    c = Block((M, N), Scalar(result))
    return Signature((a, b, c), (c,))


def dot(a: Array, b: Array, c: Array, operand: str, result: str, **attributes: object) -> Array:
    return OPERATIONS["tt.dot"]([a, b, c], signature(operand, result), attributes)[0]


@pytest.fixture
def operands() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, M, K)), rng.standard_normal((3, K, N))
    c = rng.standard_normal((1, M, N))
    return a.astype(np.float32), b.astype(np.float32), c.astype(np.float32)


def test_ieee_precision_is_that_of_float32(operands: tuple[Array, Array, Array]) -> None:
    a, b, c = operands
    exact = a.astype(np.float64) @ b + c
    assert np.abs(dot(a, b, c, "f32", "f32", inputPrecision="ieee") - exact).max() < 1e-5


def test_tf32_drops_the_bits_that_it_lacks(operands: tuple[Array, Array, Array]) -> None:
    a, b, c = operands
    mask = np.uint32(0xFFFFE000)
    short = [(one.view(np.uint32) & mask).view(np.float32).astype(np.float64) for one in (a, b)]
    found = dot(a, b, c, "f32", "f32", inputPrecision="tf32")
    assert np.abs(found - (short[0] @ short[1] + c)).max() < 1e-5
    assert np.abs(found - (a.astype(np.float64) @ b + c)).max() > 1e-4


def test_half_precision_accumulates_in_float32(operands: tuple[Array, Array, Array]) -> None:
    a, b, c = (one.astype(np.float16) for one in operands)
    found = dot(a, b, c.astype(np.float32), "f16", "f32")
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    assert np.abs(found - exact).max() < 1e-5
    assert dot(a, b, c, "f16", "f16").dtype == np.float16


def test_integers_are_exact_and_wrap() -> None:
    a = np.full((1, M, K), -128, np.int8)
    b = np.full((1, K, N), -128, np.int8)
    c = np.full((1, M, N), 2**31 - 1, np.int32)
    found = dot(a, b, c, "i8", "i32")
    assert found.dtype == np.int32
    assert found[0, 0, 0] == (2**31 - 1 + K * 16384) - 2**32


def test_compact_operands_give_the_product_of_full_ones() -> None:
    rng = np.random.default_rng(1)
    row_ = rng.standard_normal((2, 1, K)).astype(np.float32)
    ones = np.ones((1, 1, N), np.float32)
    found = dot(row_, ones, np.zeros((1, 1, 1), np.float32), "f32", "f32")
    full = np.broadcast_to(row_, (2, M, K)) @ np.ones((K, N), np.float32)
    assert np.allclose(np.broadcast_to(found, (2, M, N)), full, atol=1e-5)
