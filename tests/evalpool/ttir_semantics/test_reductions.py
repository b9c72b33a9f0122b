"""Reductions and scans against Python loops over the region."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.ttir.semantics import reduce, scan

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
