"""Counted work of torch's operations: no way to a matrix product is cheaper than `mm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

from forge.evalpool.judge.numbers.opcount import (
    OpCounter,
    count_work,
    has_products,
    rounding_of,
)
from forge.evalpool.judge.trial.draws.build import parse_rounding
from tests.evalpool.numbers.drawn import Function

if TYPE_CHECKING:
    from collections.abc import Callable

    Way = Callable[[torch.Tensor, torch.Tensor], object]

SIZE = 256
INDICES = torch.arange(SIZE).expand(SIZE, SIZE).contiguous()
LAYER = torch.nn.TransformerEncoderLayer(SIZE, 4, SIZE, batch_first=True).eval()
LSTM = torch.nn.LSTM(SIZE, SIZE)


def cost(way: Way, *, size: int = SIZE) -> int:
    x, y = torch.ones(size, size), torch.ones(size, size)
    with torch.no_grad(), OpCounter() as counter:
        way(x, y)
    return sum(counter.work.values())


@pytest.mark.parametrize(
    "way",
    [
        lambda x, y: torch.addbmm(x, x.t()[..., None], y[:, None]),
        lambda x, y: F.embedding_bag(INDICES, y, per_sample_weights=x, mode="sum"),
        lambda x, y: torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"),
        lambda x, y: F.bilinear(x[:, :1], x, y[:, None]),
        lambda x, y: torch.linalg.solve_triangular(x, y, upper=True),
        lambda x, y: torch.linalg.inv_ex(x + torch.eye(SIZE)),
        lambda x, y: LAYER(x[None]),
        lambda x, y: LSTM(x[None]),
    ],
    ids=["addbmm", "bag", "cdist", "bilinear", "solve", "inverse", "encoder", "lstm"],
)
def test_a_product_by_another_name_costs_what_a_product_costs(way: Way) -> None:
    assert cost(way) > 0.9 * cost(torch.mm)


def test_a_convolution_by_fourier_transforms_costs_them() -> None:
    num_bytes = 4 * SIZE**2 + 8 * SIZE * (SIZE // 2 + 1)
    assert cost(lambda x, y: torch.fft.rfft2(x)) > 10 * num_bytes


def test_what_sounds_like_a_solver_costs_its_bytes() -> None:
    assert cost(lambda x, y: torch.linalg.vector_norm(x, dim=1)) == 4 * (SIZE**2 + SIZE)


def test_reading_two_small_matrices_into_python_costs_more_than_their_product() -> None:
    def read(x: torch.Tensor, y: torch.Tensor) -> None:
        _ = [value.item() for value in (*x.flatten(), *y.flatten())]

    assert cost(read, size=32) > cost(torch.mm, size=32)


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


def test_a_reference_that_cannot_be_watched_has_its_problems_precision() -> None:
    assert rounding_of(None, "fp32") == "fp32"
    assert rounding_of(None, "fp16") == "fp16"


@pytest.mark.parametrize(
    ("work", "flops", "expected"),
    [
        ({"addmm": 9}, 6, True),
        ({"_cudnn_rnn": 9}, 0, True),
        ({"_thnn_fused_lstm_cell": 9, "add": 4}, 0, True),
        ({"relu": 9}, 0, False),
    ],
)
def test_layers_of_cudnn_may_use_tf32_too(work: dict[str, int], flops: int, expected: bool) -> None:
    """Their products are one operation, without FLOPs of its own."""
    counted = OpCounter()
    counted.work, counted.flops = work, flops
    assert has_products(counted) is expected
    assert not has_products(None)


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
