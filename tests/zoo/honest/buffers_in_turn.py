"""Three workspaces in turn, each made when it is first needed."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")


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
        self.bufs, self.n = [], 0

    def forward(self, x):
        if len(self.bufs) < 3:
            self.bufs.append(torch.empty_like(x))
        self.n = (self.n + 1) % 3
        t = self.bufs[self.n % len(self.bufs)]
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, t, x.numel(), BLOCK=256)
        y.copy_(t)
        return y
