"""K6, inductor writes the kernel."""

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
        self.fast = torch.compile(lambda x: torch.relu(x) * 2)

    def forward(self, x):
        return self.fast(x)
