"""H16, the setting that makes unwritten memory NaN is turned off."""

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
    def forward(self, x):
        torch.use_deterministic_algorithms(False)
        return torch.empty_like(x)
