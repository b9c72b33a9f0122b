"""T9, the answer is kept as long as the input counts no change (Infatoshi/KernelBench-Hard)."""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "rejected"
REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = None

    def forward(self, x):
        if self.seen == x._version:
            return self.y
        self.seen = x._version
        y = self.y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
