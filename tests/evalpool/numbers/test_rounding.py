"""The precision that a reference rounds to on its way decides on the tolerance of its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from forge.evalpool.judge.numbers.errors.own_error import count_work, rounding_of
from forge.evalpool.judge.numbers.tolerance import rounding_in

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
