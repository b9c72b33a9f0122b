"""Constants from numpy and math."""

import math

import numpy as np


@triton.jit
def kernel(x, y, n, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * SCALE, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](
            x, y, x.numel(), SCALE=float(np.sqrt(4.0)) * math.cos(0.0), BLOCK=256
        )
        return y
