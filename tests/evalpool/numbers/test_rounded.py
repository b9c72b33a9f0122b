"""A few integers that a reference rounds from floats may be off by one, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from forge.evalpool.judge.numbers.errors.rounded import num_rounded
from tests.evalpool.numbers.drawn import draw

if TYPE_CHECKING:
    from collections.abc import Callable


def quantised(x: torch.Tensor) -> torch.Tensor:
    return torch.round(127 * (x / x.abs().amax(-1, keepdim=True))).to(torch.int8)


def by_its_inverse(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x * (127 / x.abs().amax(-1, keepdim=True))).to(torch.int8)


def shifted(x: torch.Tensor, num: int, *, by: int = 1) -> torch.Tensor:
    made = quantised(x)
    flat = made.view(-1)
    flat[:num] = torch.where(flat[:num] > 0, flat[:num] - by, flat[:num] + by)
    return made


def inputs() -> list[torch.Tensor]:
    return [torch.randn(32, 128)]


def test_an_honest_kernel_may_multiply_by_the_inverse() -> None:
    for _ in range(4):
        drawn = draw(quantised, lambda: [torch.randn(64, 512)])
        assert drawn.refusals(by_its_inverse) == {}
        assert drawn.refusals_on_a_gpu(by_its_inverse) == {}


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        (lambda x: shifted(x, 4), True),
        (lambda x: shifted(x, 5), False),
        (lambda x: shifted(x, 1, by=2), False),
        (lambda x: quantised(x).fill_(0), False),
    ],
)
def test_few_are_off_by_one(answer: Callable[[torch.Tensor], torch.Tensor], is_right: bool) -> None:
    drawn = draw(quantised, inputs)
    assert (drawn.refusals(answer) == {}) == is_right
    assert (drawn.refusals_on_a_gpu(answer) == {}) == is_right


def test_integers_that_no_float_became_are_equal() -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    def answer(x: torch.Tensor) -> torch.Tensor:
        made = x * 3
        made[0, 0] += 1
        return made

    drawn = draw(reference, lambda: [torch.randint(0, 1000, (32, 128))])
    assert drawn.refusals(answer)
    assert drawn.refusals_on_a_gpu(answer)


def test_wide_outputs_and_those_of_few_values_or_elements_are_equal() -> None:
    made = torch.arange(4096)
    assert num_rounded(made.to(torch.int8)).tolist() == [4.0]
    none = [made, made[:200].char(), torch.randint(0, 16, (4096,)).char(), torch.randn(4096)]
    assert [one.numel() for one in map(num_rounded, none)] == [0] * 4
