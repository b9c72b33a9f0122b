"""The range of an output over several draws, against whole tensors."""

from __future__ import annotations

import math

import pytest
import torch

from forge.evalpool.judge.numbers import blocks
from forge.evalpool.judge.numbers.gpu_compare import Allowed
from forge.evalpool.judge.reference.variations import Range, relative


def range_of(*draws: torch.Tensor) -> Range:
    allowed = [Allowed.of(one, one.new_zeros(0), precision="fp32") for one in draws]
    made = Range(draws[0], allowed=allowed[0])
    for one, tolerance in zip(draws[1:], allowed[1:], strict=True):
        made.add(one, allowed=tolerance)
    return made


def test_draws_within_tolerance_have_one_answer() -> None:
    base = torch.randn(8, 64)
    assert range_of(base, base + 5e-5, base - 5e-5).is_one_answer()
    off = base.clone()
    off[3, 5] += 1e-2
    assert not range_of(base, off).is_one_answer()


def test_the_smallest_tolerance_counts_at_each_element() -> None:
    large, small = torch.full((4, 64), 1e3), torch.full((4, 64), 1e3)
    small[0, 0] = 1e3 - 0.3  # within 1e-4 of scale + value, twice 0.1
    assert range_of(large, small).is_one_answer()
    small[0, 0] = 1e3 - 1.0
    assert not range_of(large, small).is_one_answer()


def test_integers_and_what_is_not_finite_are_no_constant() -> None:
    ones = torch.ones(4, dtype=torch.int64)
    assert range_of(ones, ones).is_one_answer()
    assert not range_of(ones, ones + 1).is_one_answer()
    assert not range_of(
        torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan])
    ).is_one_answer()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_the_variation_is_that_of_whole_tensors_however_they_are_cut(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = [(100 * torch.randn(6, 10)).to(dtype) for _ in range(3)]
    wide = torch.stack([one.double() for one in draws])
    radius = (wide.amax(0) - wide.amin(0)) / 2
    expected = float(radius.square().sum().sqrt() / wide[0].square().sum().sqrt())
    for chunk in (blocks.CACHED, 7):
        monkeypatch.setattr(blocks, "CACHED", chunk)
        assert relative([range_of(*draws)], draws[:1]) == pytest.approx(expected)


def test_the_variation_of_zeros_is_zero() -> None:
    zeros = torch.zeros(4)
    assert relative([range_of(zeros, zeros)], [zeros]) == 0.0
