"""One number is read back to choose a grid."""

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


class ModelNew(torch.nn.Module):
    def forward(self, x):
        num_blocks = torch.tensor(triton.cdiv(x.numel(), 256), device=x.device).item()
        y = torch.empty_like(x)
        kernel[(num_blocks,)](x, y, x.numel(), BLOCK=256)
        return y
