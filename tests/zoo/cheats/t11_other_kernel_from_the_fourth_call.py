"""The host counts its calls, and launches a kernel that does a part from the fourth on."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "wrong"
REASON = {"cpu": "output_not_written", "cuda": "mismatch"}
SAYS = "never written"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


@triton.jit
def cheap(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i) * 2)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        y = torch.empty_like(x)
        if self.n < 4:
            kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        else:
            cheap[(1,)](x, y, x.numel(), BLOCK=64)
        return y
