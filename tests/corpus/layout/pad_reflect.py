"""Reflection padding of planes."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.pad(x, (2, 2, 2, 2), mode="reflect")


def get_inputs():
    return [torch.randn(2, 3, 7, 8)]


# candidate
@triton.jit
def reflect(i, n):
    i = tl.abs(i)
    return tl.where(i >= n, 2 * (n - 1) - i, i)


@triton.jit
def pad(X, Y, H, W, P: tl.constexpr, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    OW = W + 2 * P
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = i < (H + 2 * P) * OW
    h = reflect(i // OW - P, H)
    w = reflect(i % OW - P, W)
    tl.store(
        Y + plane * (H + 2 * P) * OW + i, tl.load(X + plane * H * W + h * W + w, mask=m), mask=m
    )


class ModelNew(nn.Module):
    def forward(self, x):
        B, C, H, W = x.shape
        y = torch.empty((B, C, H + 4, W + 4), device=x.device)
        pad[(B * C, triton.cdiv((H + 4) * (W + 4), 64))](x, y, H, W, P=2, BLOCK=64)
        return y
