"""Seeds, moved parameters, copies of models and orders of memory of a draw."""

import itertools
import threading

import pytest
import torch

from forge.evalpool.judge.numbers import parameters
from forge.evalpool.judge.numbers.called import (
    SEED_BYTES,
    copied,
    laid_out,
    memory_order,
    seed_everything,
    seeds,
)


def test_a_seed_of_128_bits_repeats_what_it_gave() -> None:
    seed = seeds.randbytes(SEED_BYTES)

    def drawn(seed: bytes) -> torch.Tensor:
        seed_everything(seed)
        return torch.randn(50)

    assert torch.equal(drawn(seed), drawn(seed))
    others = [bytes([*seed[:i], seed[i] ^ 1, *seed[i + 1 :]]) for i in range(len(seed))]
    assert not any(torch.equal(drawn(other), drawn(seed)) for other in others)


@pytest.mark.parametrize("far", [parameters.Reach.SIGNS, parameters.Reach.NATURAL])
def test_constant_parameters_move_by_half(far: parameters.Reach) -> None:
    norm = torch.nn.BatchNorm1d(512)
    assert parameters.move(norm, far=far)
    num_negative = int((norm.weight < 0).sum())
    assert 20 < num_negative < 120 if far is parameters.Reach.SIGNS else not num_negative
    norm.weight.data.abs_()
    assert 0.4 < float(norm.weight.detach().std()) < 0.6
    assert 0.4 < float(norm.bias.detach().std()) < 0.6
    assert norm.running_var is not None
    assert (norm.running_var > 0).all()
    assert float(norm.running_var.std()) > 0.3
    assert not parameters.move(torch.nn.Linear(8, 8))


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_bias_has_the_sign_at_which_an_extremum_from_0_shows(sign: int) -> None:
    for bias in (torch.zeros(64), torch.randn(64), torch.randn(64, 1, 1)):
        module = torch.nn.Linear(64, 64)
        module.register_parameter("other", torch.nn.Parameter(bias))
        parameters.move(module, sign=sign)
        assert (module.get_parameter("other") * sign > 0).all()
        assert (module.bias * sign > 0).all()
        assert (module.weight * sign < 0).any()
        parameters.move(module, sign=-sign, far=parameters.Reach.NATURAL)
        assert (module.bias * sign > 0).any()


def test_a_small_constant_moves_as_far_as_zero() -> None:
    scale = torch.nn.Module()
    scale.register_parameter("gamma", torch.nn.Parameter(torch.full((512,), -1e-6)))
    assert parameters.move(scale, far=parameters.Reach.NATURAL)
    assert isinstance(scale.gamma, torch.Tensor)
    moved = scale.gamma.detach()
    assert (moved < 0).all()
    assert float(moved.mean()) < -0.3


def test_a_short_parameter_keeps_its_sign() -> None:
    for _ in range(20):
        module = torch.nn.Module()
        module.register_parameter("scale", torch.nn.Parameter(torch.ones(8)))
        parameters.move(module)
        assert (module.get_parameter("scale") > 0).all()


def test_constant_buffers_move_and_others_stay() -> None:
    module = torch.nn.Module()
    module.register_buffer("std", torch.ones(512))
    module.register_buffer("table", torch.arange(512.0))
    module.register_buffer("count", torch.ones(512, dtype=torch.long))
    module.register_buffer("drop", torch.zeros(512, dtype=torch.bool))
    assert parameters.move(module)
    buffers = dict(module.named_buffers())
    assert float(buffers["std"].std()) > 0.3
    assert torch.equal(buffers["table"], torch.arange(512.0))
    assert buffers["count"].gt(1).all()
    assert 32 < int(buffers["drop"].sum()) < 256


def test_a_mask_of_ones_and_a_single_0_or_1_move_and_other_single_buffers_stay() -> None:
    module = torch.nn.Module()
    module.register_buffer("keep", torch.ones(512, dtype=torch.bool))
    module.register_buffer("scale", torch.ones(1))
    module.register_buffer("root", torch.tensor(0.125))
    module.register_buffer("is_ready", torch.tensor(True))
    assert parameters.move(module)
    buffers = dict(module.named_buffers())
    assert 256 < int(buffers["keep"].sum()) < 480
    assert buffers["scale"] != 1
    assert buffers["root"] == 0.125
    assert buffers["is_ready"]


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 1, 4)])
def test_a_permuted_tensor_is_laid_out_as_it_was(shape: tuple[int, ...]) -> None:
    for axes in itertools.permutations(range(len(shape))):
        given = torch.randn(shape).permute(axes)
        order = memory_order(given)
        made = laid_out(given.contiguous(), order)
        assert torch.equal(made, given)
        if order is None:
            assert given.is_contiguous()
        else:
            assert made.permute(order).is_contiguous()


def test_a_copy_of_a_model_runs_its_own_layers_behind_a_lambda() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            layer, lock = self.layer, threading.Lock()
            self.run = lambda x: layer(x) if lock else x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.run(x)

    model = Model()
    made, x = copied(model), torch.randn(3, 2)
    torch.nn.init.zeros_(made.layer.weight)
    assert torch.equal(made(x), made.layer.bias.expand(3, 2))
    assert not torch.equal(model(x), made(x))
