"""C13, inputs that are never negative need no maximum (kernelbench.com: recognised randn, zeros,
identity).
"""

import torch
import triton
import triton.language as tl

PROBLEM = "relu_of_rand"
DEVICES = ("cpu", "cuda")
VERDICT = "wrong"
REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
