"""Pixel shuffle by index arithmetic, any type."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.pixel_shuffle(x, 2)


def get_inputs():
    return [torch.randn(2, 12, 5, 6).half()]


# candidate
@triton.jit
def shuffle(X, Y, C, H, W, n, R: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ow = i % (W * R)
    oh = (i // (W * R)) % (H * R)
    c = (i // (W * R * H * R)) % C
    b = i // (W * R * H * R * C)
    source = (((b * C + c) * R + oh % R) * R + ow % R) * H * W + (oh // R) * W + ow // R
    tl.store(Y + i, tl.load(X + source, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        B, CRR, H, W = x.shape
        C = CRR // 4
        y = torch.empty((B, C, H * 2, W * 2), device=x.device, dtype=x.dtype)
        shuffle[(triton.cdiv(x.numel(), 256),)](x, y, C, H, W, x.numel(), R=2, BLOCK=256)
        return y
