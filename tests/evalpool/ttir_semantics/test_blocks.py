"""Operations on whole blocks, in compact form, against numpy on full blocks, loops and torch."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.ttir.semantics import OPERATIONS, reduce, reshaped, scan
from forge.evalpool.judge.ttir.tree import Block, Scalar, Signature
from forge.evalpool.judge.ttir.values import Array, expanded

# --- shapes


F32, I32 = Scalar("f32"), Scalar("i32")


def call(name: str, operands: list[Array], signature: Signature, **attributes: object) -> Array:
    return OPERATIONS[name](operands, signature, attributes)[0]


@st.composite
def compact_blocks(draw: st.DrawFn) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
    """A compact array, the shape of its block, and another shape of as many elements."""
    exponents = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    other = draw(st.permutations([*exponents, 0]))
    if draw(st.booleans()) and len(other) > 1:
        other = [other[0] + other[1], *other[2:]]
    shape = tuple(1 << one for one in exponents)
    sizes = [draw(st.sampled_from([1, size])) for size in (2, *shape)]
    array = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    return array, shape, tuple(1 << one for one in other)


@settings(max_examples=200)
@given(case=compact_blocks())
def test_a_reshaped_block_has_its_elements_in_order(
    case: tuple[Array, tuple[int, ...], tuple[int, ...]],
) -> None:
    array, old, new = case
    found = expanded(reshaped(array, old, new), new)
    assert (found.reshape(len(array), -1) == expanded(array, old).reshape(len(array), -1)).all()


def test_a_reshape_within_axes_stays_compact() -> None:
    rows = np.arange(4, dtype=np.float32).reshape(1, 4, 1)
    assert reshaped(rows, (4, 8), (4, 2, 4)).shape == (1, 4, 1, 1)


def test_join_and_split() -> None:
    left, right = np.zeros((1, 1), np.float32), np.arange(4, dtype=np.float32)[None]
    block, joined = Block((4,), F32), Block((4, 2), F32)
    both = call("tt.join", [left, right], Signature((block, block), (joined,)))
    assert both.tolist() == [[[0, 0], [0, 1], [0, 2], [0, 3]]]
    halves = OPERATIONS["tt.split"]([both], Signature((joined,), (block, block)), {})
    assert [half.tolist() for half in halves] == [[[0, 0, 0, 0]], right.tolist()]


def test_cat_expands_instances() -> None:
    left, right = np.array([[1.0], [2.0]]), np.array([[5.0, 6.0]])
    kind = Block((2,), F32)
    found = call("tt.cat", [left, right], Signature((kind, kind), (Block((4,), F32),)))
    assert found.tolist() == [[1, 5, 1, 6], [2, 5, 2, 6]]  # by turns: any order is allowed


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_takes_along_an_axis(axis: int) -> None:
    rng = np.random.default_rng(0)
    source, index = rng.standard_normal((3, 4, 4)), rng.integers(0, 4, (3, 4, 4))
    kind = Block((4, 4), F32)
    signature = Signature((kind, Block((4, 4), I32)), (kind,))
    found = call("tt.gather", [source, index], signature, axis=axis)
    assert (found == np.take_along_axis(source, index, axis + 1)).all()
    shared = call("tt.gather", [source[:1], index], signature, axis=axis)
    assert (shared[2] == np.take_along_axis(source[0], index[2], axis)).all()


def test_histogram_counts_each_instance_alone() -> None:
    values = np.array([[0, 1, 1, 7], [3, 3, 9, -1]], np.int32)
    signature = Signature((Block((4,), I32),), (Block((4,), I32),))
    found = call("tt.histogram", [values], signature)
    assert found.tolist() == [[1, 2, 0, 1], [0, 1, 0, 3]]
    assert found.dtype == np.int32
    mask = np.array([[True, True, False, True]])
    masked = Signature((Block((4,), I32), Block((4,), Scalar("i1"))), (Block((4,), I32),))
    assert call("tt.histogram", [values, mask], masked).tolist() == [[1, 1, 0, 1], [0, 0, 0, 3]]


# --- reductions


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
