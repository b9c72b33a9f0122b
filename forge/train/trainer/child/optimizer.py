"""AdamW for weights in bf16, with stochastic rounding.

A bf16 number has 8 bits: an update below 1/256 of a weight is lost if it is rounded to the nearest,
and so is the decay of a second moment with beta2 = 0.999. Here the arithmetic is in f32, and a
result is rounded up or down by chance, in proportion to its distance: right in expectation, at 6
bytes a parameter with both moments, where f32 takes 12.
"""

from __future__ import annotations

from typing import Any

import torch

from forge.train.trainer.child.settings import TrainerSettings, uses_fsdp

CHUNK = 1 << 24
"""Numbers that are updated at a time on a CPU, in four copies in f32 (268 MB)."""
SEEDS = 1 << 31


def rounding_optimizer(settings: TrainerSettings, model: Any) -> tuple[Any, dict[str, Any]] | None:
    """Class and arguments for transformers' Trainer, if plain AdamW trains weights in bf16; None
    for the stage's own choice. accelerate makes trained shards f32 (`fsdp2_prepare_model`)."""
    trained = {p.dtype for p in model.parameters() if p.requires_grad}
    is_other = settings.model["quantize"] is not None or uses_fsdp(settings)
    if settings.stage["optimizer"] != "adamw" or trained != {torch.bfloat16} or is_other:
        return None
    betas = settings.stage["adam_beta1"], settings.stage["adam_beta2"]
    return RoundingAdamW, {"lr": settings.stage["learning_rate"], "betas": betas}


class RoundingAdamW(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) whose weights and moments are bf16."""

    def __init__(
        self, params: Any, *, lr: float, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        rates = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, rates)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        groups = ((group, p) for group in self.param_groups for p in group["params"])
        for number, (group, p) in enumerate(groups):
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(p)
                state["exp_avg_sq"] = torch.zeros_like(p)
            state["step"] += 1
            whole = (p, p.grad, state["exp_avg"], state["exp_avg_sq"])
            tensors = [each.view(-1) for each in whole]
            factors = _factors(state["step"], **group)
            if tensors[0].is_cuda:
                from forge.train.trainer.child.rounding_kernel import update

                update(*tensors, seed=(state["step"] << 12 ^ number) % SEEDS, **factors)
                continue
            for part in zip(*(each.split(CHUNK) for each in tensors), strict=True):
                _update(*part, **factors)


def _factors(
    step: int, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, **_: Any
) -> dict[str, Any]:
    """Numbers of a step: its rate, the factor of weights that decay, the moments' corrections."""
    corrections = 1 - betas[0] ** step, 1 - betas[1] ** step
    decay = 1 - lr * weight_decay
    return {"rate": lr, "decay": decay, "betas": betas, "corrections": corrections, "eps": eps}


def _update(
    p: torch.Tensor, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor, *, rate: float,
    decay: float, betas: tuple[float, float], corrections: tuple[float, float], eps: float,
) -> None:  # fmt: skip
    g = grad.float()
    m = first.float().lerp_(g, 1 - betas[0])
    v = second.float().mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    _store(m, first)
    _store(v, second)
    scale = v.div_(corrections[1]).sqrt_().add_(eps)
    _store(p.float().mul_(decay).addcdiv_(m, scale, value=-rate / corrections[0]), p)


def _store(value: torch.Tensor, target: torch.Tensor) -> None:
    """Round to one of the two nearest bf16 numbers: a bf16 number is the upper half of an f32."""
    bits = value.view(torch.int32)
    noise = torch.randint_like(bits, 1 << 16)
    target.copy_((bits + noise).bitwise_and_(-(1 << 16)).view(torch.float32))
