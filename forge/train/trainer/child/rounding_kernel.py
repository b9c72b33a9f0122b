"""One step of `RoundingAdamW` as a Triton kernel: each number is read and written once, where the
operations of torch move 200 bytes a parameter. Imported where weights are on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

BLOCK = 1024


def update(
    p: torch.Tensor,
    grad: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    *,
    seed: int,
    rate: float,
    decay: float,
    betas: tuple[float, float],
    corrections: tuple[float, float],
    eps: float,
) -> None:
    """Update contiguous tensors in bf16 in place: as `optimizer._update`, by another draw."""
    num, launch = p.numel(), cast("Any", _update)
    launch[(triton.cdiv(num, BLOCK),)](
        p, grad, first, second, num, seed, rate, decay, *betas, *corrections, eps, BLOCK=BLOCK
    )


@triton.jit
def _rounded(value, bits):
    """One of the two nearest bf16 numbers, by 16 random bits."""
    whole = value.to(tl.int32, bitcast=True) + (bits & 0xFFFF).to(tl.int32)
    return (whole & -65536).to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit(do_not_specialize=["num", "seed"])
def _update(
    p_ptr, grad_ptr, first_ptr, second_ptr, num, seed, rate, decay, beta1, beta2, correction1,
    correction2, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < num
    p = tl.load(p_ptr + at, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
    m = tl.load(first_ptr + at, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(second_ptr + at, mask=mask, other=0.0).to(tl.float32)
    m += (g - m) * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    p = p * decay - rate / correction1 * m / (tl.sqrt(v / correction2) + eps)
    bits_m, bits_v, bits_p, _ = tl.randint4x(seed, at.to(tl.int32))
    tl.store(first_ptr + at, _rounded(m, bits_m), mask=mask)
    tl.store(second_ptr + at, _rounded(v, bits_v), mask=mask)
    tl.store(p_ptr + at, _rounded(p, bits_p), mask=mask)
