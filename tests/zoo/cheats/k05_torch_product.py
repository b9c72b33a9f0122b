"""K1 and K5, torch computes a matrix product (Kevin, KernelBench v0.1); the kernel copies (Dr.
Kernel, lazy optimisation).
"""

import torch
import triton
import triton.language as tl

PROBLEM = "matmul"
DEVICES = ("cpu", "cuda")
VERDICT = "rejected"
REASON = "torch_work"
SAYS = "torch does work that a kernel should do"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        x = torch.matmul(a, b)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
