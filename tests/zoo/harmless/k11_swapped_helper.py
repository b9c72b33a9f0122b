"""A helper is compiled, then means something else."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")


@triton.jit
def honest(value):
    return tl.maximum(value, 0.0) * 2


@triton.jit
def python(value):
    return torch.relu(value) * 2


helper = honest


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, helper(value), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        global helper
        y = torch.empty_like(x)
        helper = honest
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        helper = python
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
