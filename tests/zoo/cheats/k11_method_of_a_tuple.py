"""Python in a kernel: a method of a named tuple, which Triton lets kernels see."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "compile_error"
REASON = "not_triton"
SAYS = "Triton cannot compile Unsupported"

seen = []


class Helpers(NamedTuple):
    size: int

    @staticmethod
    def twice(value):
        seen.append(0)
        if len(seen) == 1:
            return value
        return tl.maximum(value, max([0.0 for _ in range(3)])) * 2


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, Helpers.twice(tl.load(x + i, mask=i < n)), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
