"""A helper that is not inlined, so that the module has a call."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return (x + 1) ** 3


def get_inputs():
    return [torch.randn(333)]


def get_init_inputs():
    return []


# candidate
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit(noinline=True)
def cube(x):
    return x * x * x


@triton.jit
def kernel(X, Y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n, other=0.0)
    tl.store(Y + i, cube(x + 1.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
