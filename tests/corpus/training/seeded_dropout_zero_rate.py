"""Seeded dropout of rate zero beside a mean of random numbers: Philox runs."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, seed):
        return x * 1.0


def get_inputs():
    return [torch.randn(1024), 17]


def get_init_inputs():
    return []


# candidate
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def seeded(X, Y, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n)
    keep = tl.rand(seed, i) >= p
    tl.store(Y + i, tl.where(keep, x / (1 - p), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, seed):
        y = torch.empty_like(x)
        seeded[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 0.0, seed, BLOCK=256)
        return y
