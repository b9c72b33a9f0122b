"""Roundings of a reference: the precision on its way, and integers that may be off by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from forge.evalpool.judge.numbers.errors.own_error import count_work, rounding_of
from forge.evalpool.judge.numbers.errors.rounded import num_rounded
from forge.evalpool.judge.numbers.tolerance import rounding_in
from tests.evalpool.numbers.drawn import draw

if TYPE_CHECKING:
    from collections.abc import Callable


class Called(torch.nn.Module):
    """A reference that is one function of one tensor."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def rounding(
    function: Callable[[torch.Tensor], torch.Tensor], *, dtype: torch.dtype = torch.float32
) -> str:
    counted = count_work(Called(function), [torch.rand(4, 4).to(dtype)])
    assert counted is not None
    return rounding_of(counted, "fp32")


def test_half_precision_results_on_the_way_count() -> None:
    assert rounding(lambda x: (x.half() @ x.half()).float()) == "fp16"
    assert rounding(lambda x: x.bfloat16().float() + 1) == "bf16"
    assert rounding(lambda x: torch.softmax(x, -1).float(), dtype=torch.bfloat16) == "bf16"


def test_what_no_result_is_rounded_to_does_not_count() -> None:
    assert rounding(lambda x: x @ x) == "fp32"
    assert rounding(lambda x: x.float() @ x.float(), dtype=torch.float16) == "fp32"
    assert rounding(lambda x: torch.cat([x, x]).clone().float(), dtype=torch.float16) == "fp32"
    assert rounding(lambda x: x + torch.zeros(4, dtype=torch.float16)) == "fp32"


def test_a_reference_that_cannot_be_watched_has_its_problems_precision() -> None:
    assert rounding_of(None, "fp32") == "fp32"
    assert rounding_of(None, "fp16") == "fp16"


@pytest.mark.parametrize(
    ("said", "precision", "expected"),
    [
        ("bf16", "fp32", "bf16"),
        ("fp32", "fp32", "fp32"),
        (None, "fp32", "fp32"),
        ("e5m2", "fp32", "fp32"),
        ("fp32", "fp16", "fp16"),
    ],
)
def test_only_a_half_precision_is_believed(said: object, precision: str, expected: str) -> None:
    assert rounding_in({"rounding": said}, precision) == expected


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
