"""AdamW in bf16: right in expectation where rounding to the nearest loses every update."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forge.train.trainer.child import trainer
from forge.train.trainer.child.trainer import RoundingAdamW


def trained(kind: type[torch.optim.Optimizer], dtype: torch.dtype) -> torch.Tensor:
    """4,096 equal weights after 200 steps down a constant slope, each 1/2000 of a weight."""
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.ones(4096, dtype=dtype))
    adam = kind([weights], lr=5e-4, weight_decay=0.1)  # type: ignore[call-arg]
    for _ in range(200):
        weights.grad = torch.full_like(weights, 0.01)
        adam.step()
    return weights.detach().float()


def test_small_updates_add_up_as_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    want = float(trained(torch.optim.AdamW, torch.float32).mean())
    assert want < 0.9
    nearest = trained(torch.optim.AdamW, torch.bfloat16)
    assert torch.equal(nearest, torch.ones(4096)), "every update is lost"
    found = trained(RoundingAdamW, torch.bfloat16)
    assert float(found.mean()) == pytest.approx(want, abs=2e-3)
    monkeypatch.setattr(trainer, "CHUNK", 1000)
    assert float(trained(RoundingAdamW, torch.bfloat16).mean()) == pytest.approx(want, abs=2e-3)


def test_weights_that_fsdp_shards_are_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate has made them f32 before the optimizer is made."""
    model = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    stage = {"optimizer": "adamw", "adam_beta1": 0.9, "adam_beta2": 0.99, "learning_rate": 1e-3}
    settings: Any = SimpleNamespace(stage=stage, model={"quantize": None})
    for shards in (False, True):
        monkeypatch.setattr(trainer, "uses_fsdp", lambda _, shards=shards: shards)
        assert (trainer.rounding_optimizer(settings, model) is None) is shards


def test_shards_keep_log_probabilities_and_sum_gradients_in_single_precision() -> None:
    from accelerate import FullyShardedDataParallelPlugin

    from forge.train.trainer.child.trainer import with_exact_sums

    plugin: Any = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    policy = with_exact_sums(plugin.mixed_precision_policy)
    assert (policy.output_dtype, policy.reduce_dtype) == (None, torch.float32)
    assert policy.param_dtype is torch.bfloat16


def test_what_bf16_can_hold_is_not_rounded() -> None:
    values = torch.tensor([1.0, -2.5, 0.0, 3.140625])
    target = torch.empty(4, dtype=torch.bfloat16)
    trainer._store(values, target)
    assert torch.equal(target.float(), values)


DRAWING = """
import sys, torch
from forge.train.trainer.child.rounding_kernel import update
given, factors = torch.load(sys.argv[1])
drawn = [[each.clone() for each in given] for _ in range(20)]
for seed, found in enumerate(drawn):
    update(*found, seed=seed, **factors)
torch.save(drawn, sys.argv[1])
"""
"""Triton's interpreter runs the kernel on the CPU, in a process that has no compiled Triton."""


@pytest.mark.slow
def test_the_kernel_of_a_gpu_rounds_to_both_neighbours_and_is_right_in_expectation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    draw = torch.Generator().manual_seed(0)
    p, grad, first, second = (torch.randn(1500, generator=draw).bfloat16() for _ in range(4))
    given, exact, file = (p, grad, first, second.abs()), [], tmp_path / "given"
    factors = trainer._factors(3, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    torch.save((given, factors), file)
    command, env = [sys.executable, "-c", DRAWING, str(file)], {"TRITON_INTERPRET": "1"}
    subprocess.run(command, env=os.environ | env, check=True)
    monkeypatch.setattr(trainer, "_store", lambda value, target: exact.append(value.clone()))
    trainer._update(*given, **factors)
    for number, want in zip((2, 3, 0), exact, strict=True):  # both moments and the weights
        values = torch.stack([found[number].float() for found in torch.load(file)])
        gap = (values - want) / want.abs()
        assert gap.abs().max() < 1 / 128, "no farther than a neighbour"
        assert abs(gap.mean()) < 1e-4
        assert len(values[:, 7].unique()) == 2
