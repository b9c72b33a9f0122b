"""Least scales of slabs, from all sets of a draw."""

from __future__ import annotations

import pytest
import torch

from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.numbers import gpu_compare
from forge.evalpool.judge.numbers.called import dtype_name
from forge.evalpool.judge.numbers.compare import Expected, mismatch
from forge.evalpool.judge.numbers.gpu_compare import Allowed
from forge.evalpool.judge.numbers.shares import with_shares
from forge.evalpool.judge.numbers.slabs import unpack_errors
from forge.evalpool.judge.numbers.tolerance import FLOOR, families

NUM_SETS = 4


def no_errors(one: torch.Tensor) -> torch.Tensor:
    shape = tuple(one.shape)
    return torch.zeros(sum(torch.Size([shape[a] for a in g]).numel() for g in families(shape)))


def refusals(outputs: list[torch.Tensor], gots: list[torch.Tensor]) -> list[tuple[bool, bool]]:
    """By set, True where a result is refused: on a CPU, and by the comparison for GPUs."""
    errors = with_shares(outputs, [no_errors(one) for one in outputs], precision="fp32")
    found: list[tuple[bool, bool]] = []
    for output, got, error in zip(outputs, gots, errors, strict=True):
        spec = TensorSpec(dtype_name(output), tuple(output.shape))
        data, right = (one.numpy().tobytes() for one in (got, output))
        one = Expected.make(spec, right, error=error.numpy().tobytes(), precision="fp32")
        allowed = Allowed.of(output, error, precision="fp32")
        on_gpu = gpu_compare.mismatch(got, output, allowed=allowed)
        found.append((mismatch(one, data) is not None, on_gpu is not None))
    return found


def beside_squares(small: torch.Tensor) -> torch.Tensor:
    return torch.cat([(1000 * torch.randn_like(small)) ** 2, small], -1)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(8, 64), (4, 16, 64), (64,)])
def test_values_far_smaller_than_others_are_judged_by_their_own_size(
    shape: tuple[int, ...], kind: torch.dtype
) -> None:
    torch.manual_seed(0)
    made = [beside_squares(torch.rand(shape)) for _ in range(NUM_SETS)]
    outputs = [one.clamp(max=6e4).to(kind) for one in made]
    wrong = [one.clone() for one in outputs]
    for one in wrong:
        one[..., shape[-1] :] = 0.5
    assert refusals(outputs, wrong) == [(True, True)] * NUM_SETS
    assert refusals(outputs, outputs) == [(False, False)] * NUM_SETS


def test_a_slab_that_is_small_on_one_set_alone_keeps_its_least_scale() -> None:
    torch.manual_seed(0)
    outputs = [torch.randn(64, 64) for _ in range(NUM_SETS)]
    outputs[2][:, 5] *= 1e-6
    off = [one.clone() for one in outputs]
    off[2][:, 5] += 1e-6  # roundings of what cancels there
    assert refusals(outputs, off) == [(False, False)] * NUM_SETS
    off[2][:, 5] += 3e-6
    assert refusals(outputs, off)[2] == (True, True)


def test_a_slab_of_zeros_or_one_that_is_imprecise_keeps_its_least_scale() -> None:
    torch.manual_seed(0)
    outputs = [torch.randn(64, 64) * 1e3 for _ in range(NUM_SETS)]
    errors = [no_errors(one) for one in outputs]
    for one, error in zip(outputs, errors, strict=True):
        one[:, 3] = 0
        one[:, 4:6] *= 1e-6
        error[64 + 4] = 1e-5
    for packed in with_shares(outputs, errors, precision="fp32"):
        own, shares = unpack_errors((64, 64), packed)
        assert own is not None
        assert shares is not None
        assert shares[1][3] == shares[1][4] == shares[1][6] == FLOOR
        assert shares[1][5] < 2e-6


def test_two_sets_say_nothing_of_single_elements() -> None:
    torch.manual_seed(0)
    outputs = [torch.randn(256) for _ in range(2)]
    assert refusals(outputs, [one + 1e-5 for one in outputs]) == [(False, False)] * 2


def test_an_output_that_vanishes_may_be_lost_as_a_whole() -> None:
    torch.manual_seed(0)
    given = torch.nn.functional.logsigmoid(torch.randn(64, 64) * 8)
    vanished = torch.nn.functional.logsigmoid(torch.rand(64, 64) + 30)
    small = torch.nn.functional.logsigmoid(torch.rand(64, 64) + 3)
    nothing = torch.zeros(64, 64)
    assert refusals([given, vanished], [given, nothing]) == [(False, False), (False, False)]
    assert refusals([given, small], [given, nothing])[1] == (True, True)
    assert refusals([vanished, given], [nothing, given])[0] == (True, True)
