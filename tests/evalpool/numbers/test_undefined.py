"""Inputs for which torch leaves a reference's result open are in no set that a problem lacks."""

from __future__ import annotations

import itertools

import pytest
import torch

from forge.evalpool.judge.numbers.errors.own_error import count_work
from forge.evalpool.judge.numbers.errors.undefined import is_defined
from forge.evalpool.judge.numbers.inputs.discrete import redraw
from forge.evalpool.judge.numbers.inputs.edges import Edges
from tests.evalpool.numbers.drawn import Function, draw


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers by a scale in fp16, which may be 0."""
    scale = (x.abs().amax(-1, keepdim=True) / 127).half()
    return (x / scale.float()).to(torch.int8), scale


def put(x: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    for row, (one, other) in enumerate(itertools.pairwise(offsets)):
        chosen = ids[one:other]
        made[row, chosen] = made[row, chosen] * 2 + torch.arange(len(chosen))
    return made


def test_a_number_that_is_not_finite_becomes_no_integer() -> None:
    model = Function(quantised)
    assert is_defined(model, [torch.randn(4, 8)])
    assert not is_defined(model, [torch.full((4, 8), 1e-9)])
    for _ in range(4):
        drawn = draw(quantised, lambda: [torch.randn(16, 32)])
        assert all((one.outputs[1] > 0).all() or one.variant == "given" for one in drawn.sets)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_finite_numbers_out_of_an_integers_range_are_cast(dtype: torch.dtype) -> None:
    assert is_defined(Function(lambda x: x.to(dtype)), [torch.full((3,), 1e12)])
    assert not is_defined(Function(lambda x: x.to(dtype)), [torch.tensor([float("nan")])])


def levels(x: torch.Tensor) -> torch.Tensor:
    """How many edges each share of its row's largest exceeds: of NaN in a row of zeros, none."""
    share = x / x.abs().amax(-1, keepdim=True)
    return (share[..., None] > torch.linspace(-0.9, 0.9, 15)).sum(-1)


def test_an_order_of_nan_is_undefined_unless_a_reference_looks_for_nan() -> None:
    assert is_defined(Function(levels), [torch.randn(4, 8)])
    assert not is_defined(Function(levels), [torch.zeros(4, 8)])
    for _ in range(4):
        drawn = draw(levels, lambda: [torch.randn(16, 32)])
        assert all((one.inputs[0] != 0).any(-1).all() for one in drawn.sets)
    counted = count_work(Function(levels), [torch.randn(4, 8)])
    assert Edges.of(counted, "").may_be_undefined
    looking = Function(lambda x: torch.where(x.isnan() | (x > 1), 0.0, x))
    assert not Edges.of(count_work(looking, [torch.randn(4, 8)]), "").may_be_undefined


def test_different_values_at_one_place_are_undefined() -> None:
    x, twice = torch.randn(8, 4), torch.tensor([2, 5, 2])
    puts = {
        "put": lambda x, i: x.index_put((i,), torch.arange(12.0).view(3, 4)),
        "scatter": lambda x, i: x.scatter(0, i[:, None], torch.arange(3.0)[:, None]),
        "copy": lambda x, i: x.index_copy(0, i, torch.arange(12.0).view(3, 4)),
    }
    for function in puts.values():
        assert not is_defined(Function(function), [x, twice])
        assert is_defined(Function(function), [x, twice + torch.tensor([0, 0, 1])])
    assert is_defined(Function(lambda x, i: x.index_put((i,), x[:3], accumulate=True)), [x, twice])
    assert is_defined(Function(lambda x, i: x.scatter(0, i[:, None], 1.0)), [x, twice])
    assert is_defined(Function(lambda x, i: x.index_put((i,), torch.ones(()))), [x, twice])


def test_places_that_are_different_in_each_segment_stay_so() -> None:
    def inputs() -> list[torch.Tensor]:
        ids = torch.cat([torch.randperm(40)[:size] for size in (5, 20, 9)])
        return [torch.randn(3, 40), ids, torch.tensor([0, 5, 25, 34])]

    for _ in range(4):
        for one in draw(put, inputs).sets:
            assert is_defined(Function(put), one.inputs)


def test_indices_that_are_different_by_design_occur_once_where_they_are_added_to() -> None:
    edges = Edges(is_accumulating=True)
    dense = torch.randperm(200)[:100]
    assert torch.equal(redraw(dense, dense + 1, variant="unlike", edges=edges), dense)
    chosen = torch.stack([torch.randperm(8)[:4] for _ in range(40)])
    assert torch.equal(redraw(chosen, chosen + 1, variant="unlike", edges=edges), chosen)
    few = torch.tensor([7, 3, 12, 5])  # sorted ones would be offsets
    made = [redraw(few, few + 1, variant="unlike", edges=edges) for _ in range(30)]
    assert any(len(one.unique()) < len(few) for one in made)
    permuting = Edges(is_accumulating=True, has_permutations=True)
    assert torch.equal(redraw(few, few + 1, variant="unlike", edges=permuting), few)


def test_segments_of_unlike_length_are_no_longer_than_the_longest() -> None:
    given = torch.tensor([0, 12, 17, 37, 40, 55])
    found = set()
    for _ in range(50):
        made = redraw(given, given, variant="unlike")
        assert (int(made[0]), int(made[-1])) == (0, 55)
        assert 1 <= int(made.diff().min()) <= int(made.diff().max()) <= 20
        found.add(tuple(made.tolist()))
    assert len(found) > 25
    like = torch.arange(0, 65, 16)
    assert max(int(redraw(like, like, variant="unlike").diff().max()) for _ in range(20)) > 16
