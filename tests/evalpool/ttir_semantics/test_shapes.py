"""Operations that move elements, in compact form, against numpy on full blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.ttir.semantics import OPERATIONS
from forge.evalpool.judge.ttir.semantics.blocks import reshaped
from forge.evalpool.judge.ttir.tree import Block, Scalar, Signature
from forge.evalpool.judge.ttir.values import Array, expanded

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
    assert found.tolist() == [[1, 2, 0, 0], [0, 0, 0, 2]]
    assert found.dtype == np.int32
    mask = np.array([[True, True, False, True]])
    masked = Signature((Block((4,), I32), Block((4,), Scalar("i1"))), (Block((4,), I32),))
    assert call("tt.histogram", [values, mask], masked).tolist() == [[1, 1, 0, 0], [0, 0, 0, 2]]
