"""Operations with results that torch leaves open: no input set of a judge has one."""

from typing import Any

import pytest
import torch

from forge.evalpool.judge.wide.reference import UndefinedResult, WideReference
from tests.evalpool.numbers.drawn import Function, draw

KINDS = frozenset({"float32", "float64"})


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers by a scale in fp16, which may be 0."""
    scale = (x.abs().amax(-1, keepdim=True) / 127).half()
    return (x / scale.float()).to(torch.int8), scale


def is_defined(reference: Any, inputs: list[torch.Tensor]) -> bool:
    wide = WideReference(Function(reference), KINDS, source="", own=torch.float32)
    try:
        wide.run(inputs, [], is_watched=True)
    except UndefinedResult:
        return False
    return True


def test_a_number_that_is_not_finite_becomes_no_integer() -> None:
    assert is_defined(quantised, [torch.randn(4, 8)])
    assert not is_defined(quantised, [torch.full((4, 8), 0.0)])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_a_number_out_of_an_integers_range_becomes_none(dtype: torch.dtype) -> None:
    """C leaves the result open: a CPU wraps or takes the least number, a card the nearest."""
    most = float(torch.iinfo(dtype).max)
    assert is_defined(lambda x: x.to(dtype), [torch.tensor([0.0, 0.75 * most])])
    for one in (1.5 * most, -1.5 * most - 2, float("nan")):
        assert not is_defined(lambda x: x.to(dtype), [torch.tensor([0.0, one])])


def levels(x: torch.Tensor) -> torch.Tensor:
    """How many edges each share of its row's largest exceeds: of NaN in a row of zeros, none."""
    share = x / x.abs().amax(-1, keepdim=True)
    return (share[..., None] > torch.linspace(-0.9, 0.9, 15)).sum(-1)


def test_an_order_of_nan_is_undefined() -> None:
    assert is_defined(levels, [torch.randn(4, 8)])
    assert not is_defined(levels, [torch.zeros(4, 8)])
    for one in draw(levels, lambda: [torch.randn(16, 32)]).sets:
        assert (one.inputs[0] != 0).any(-1).all()


def test_different_values_at_one_place_are_undefined() -> None:
    x, twice = torch.randn(8, 4), torch.tensor([2, 5, 2])
    puts = {
        "put": lambda x, i: x.index_put((i,), torch.arange(12.0).view(3, 4)),
        "scatter": lambda x, i: x.scatter(0, i[:, None], torch.arange(3.0)[:, None]),
        "copy": lambda x, i: x.index_copy(0, i, torch.arange(12.0).view(3, 4)),
    }
    for function in puts.values():
        assert not is_defined(function, [x, twice])
        assert is_defined(function, [x, twice + torch.tensor([0, 0, 1])])
    assert is_defined(lambda x, i: x.index_put((i,), x[:3], accumulate=True), [x, twice])
    assert is_defined(lambda x, i: x.scatter(0, i[:, None], 1.0), [x, twice])
    assert is_defined(lambda x, i: x.index_put((i,), torch.ones(())), [x, twice])
