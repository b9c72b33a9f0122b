"""H9, torch brings a launcher of programs with it."""

import torch
import torch.backends.xeon.run_cpu as launcher
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        launcher.create_args
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
