"""Asks the card for its number of processors, where there is one."""

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
        count = 1
        if torch.cuda.is_available():
            count = torch.cuda.get_device_properties(x.device).multi_processor_count
        y = torch.empty_like(x)
        kernel[(max(count, triton.cdiv(x.numel(), 256)),)](x, y, x.numel(), BLOCK=256)
        return y
