"""K1 in a mode that hides operations from an observer of autograd."""

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
        with torch.inference_mode():
            x = torch.matmul(a, b)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
