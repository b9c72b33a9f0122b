"""Seen operations of a reference: precision that it rounds to, products, FLOPs."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from forge.evalpool.judge.numbers.opcount import OpCounter, count_work, rounding_of
from forge.evalpool.judge.trial.draws import parse_rounding
from tests.evalpool.numbers.drawn import Function


def rounding(
    function: Callable[[torch.Tensor], torch.Tensor], *, dtype: torch.dtype = torch.float32
) -> str:
    counted = count_work(Function(function), [torch.rand(4, 4).to(dtype)])
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
    assert parse_rounding(said, precision) == expected


def test_flops_of_products_by_any_name_are_those_of_a_product() -> None:
    def flops(way: Callable[[torch.Tensor, torch.Tensor], object]) -> int:
        x, y = torch.ones(64, 64), torch.ones(64, 64)
        with torch.no_grad(), OpCounter() as counter:
            way(x, y)
        return counter.flops

    assert flops(torch.mm) == 2 * 64**3
    for way in (
        lambda x, y: torch.addbmm(x, x.t()[..., None], y[:, None]),
        lambda x, y: F.bilinear(x[:, :1], x, y[:, None]),
        lambda x, y: F.conv2d(x[None, :, :, None], y[:, :, None, None]),
    ):
        assert flops(way) == flops(torch.mm)
    assert flops(torch.add) == flops(lambda x, y: torch.linalg.vector_norm(x)) == 0
