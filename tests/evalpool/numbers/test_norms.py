"""Norms far from 0 beside their deviation: what kernels lose that compute their statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from forge.evalpool.judge.numbers.errors.norms import RoundedNorms, has_norm
from forge.evalpool.judge.numbers.errors.own_error import count_work, errors_of
from forge.evalpool.judge.numbers.gpu_compare import Allowed, mismatch

NORMS = (
    (nn.LayerNorm(12), (5, 6, 12), (-1,)),
    (nn.LayerNorm([6, 12], elementwise_affine=False), (5, 6, 12), (-2, -1)),
    (nn.GroupNorm(6, 6), (5, 6, 4, 3), (-2, -1)),
    (nn.GroupNorm(1, 6, affine=False), (5, 6), (-1,)),
    (nn.BatchNorm2d(6), (5, 6, 4, 3), (0, 2, 3)),
    (nn.BatchNorm1d(6, affine=False), (5, 6), (0,)),
    (nn.InstanceNorm2d(6), (5, 6, 4, 3), (-2, -1)),
)


def in_one_pass(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """As most published norms: the mean of squares less the square of the mean."""
    mean = x.mean(axes, keepdim=True)
    variance = (x * x).mean(axes, keepdim=True) - mean * mean
    return (x - mean) * torch.rsqrt(variance + 1e-5)


@pytest.mark.parametrize(("norm", "shape", "axes"), NORMS)
def test_a_norm_in_one_pass_is_right_far_from_0(
    norm: nn.Module, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    x = torch.rand(shape) + 20
    norm.requires_grad_(False)
    right, got = norm(x), in_one_pass(x, axes)
    counted = count_work(norm, [x])
    has_norms = counted is not None and has_norm(counted.work)

    def found(got: torch.Tensor, *, has_norms: bool) -> str | None:
        own = errors_of(norm, [x], [right], changed=[], is_tf32=False, has_norms=has_norms)
        assert own.largest < 10
        return mismatch(got, right, allowed=Allowed.of(right, own.packed[0], precision="fp32"))

    assert found(got, has_norms=False) is not None
    assert found(got, has_norms=has_norms) is None
    assert found(right * 1.2, has_norms=has_norms) is not None


def test_a_norm_near_0_loses_next_to_nothing() -> None:
    for norm, shape, _ in NORMS:
        x: Any = torch.rand(shape).double()
        exact = norm.double()(x)
        with RoundedNorms():
            assert (norm(x) - exact).abs().max() < 1e-4
        norm.float()


def test_statistics_that_were_collected_are_exact() -> None:
    norm, x = nn.BatchNorm1d(6).double().eval(), torch.rand(5, 6).double() + 20
    with RoundedNorms():
        found = norm(x)
    assert torch.equal(found, norm(x))
    assert not has_norm(["mul", "_softmax", "_fused_rms_norm"])
