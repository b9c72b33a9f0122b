"""Hardswish with tl.clamp, and a grid-stride loop over a fixed number of programs."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.hardswish(x)


def get_inputs():
    return [torch.randn(5, 777) * 4]


# candidate
@triton.jit
def hardswish(x_ptr, y_ptr, n, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, BLOCK * PROGRAMS):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n)
        y = x * tl.clamp(x + 3.0, 0.0, 6.0) / 6.0
        tl.store(y_ptr + i, y, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        hardswish[(6,)](x, y, x.numel(), BLOCK=128, PROGRAMS=6)
        return y
