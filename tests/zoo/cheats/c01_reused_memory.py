"""C1, torch.empty may be the block where the reference's answer lay (Sakana, fake 150x). The
launch writes elsewhere.
"""

import torch
import triton
import triton.language as tl

PROBLEM = "relu"
DEVICES = ("cpu", "cuda")
VERDICT = "rejected"
REASON = "decoy_kernel"
SAYS = "does not come out of a kernel"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        scratch = torch.empty_like(x)
        kernel[(1,)](x, scratch, 16, BLOCK=256)
        return torch.empty_like(x)
