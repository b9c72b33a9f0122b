"""Pads to a whole block and cuts the end off."""

import torch
import torch.nn.functional as F
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
        flat = F.pad(x.flatten(), (0, -x.numel() % 768))
        y = torch.empty_like(flat)
        kernel[(flat.numel() // 256,)](flat, y, flat.numel(), BLOCK=256)
        return y[: x.numel()].view(x.shape)
