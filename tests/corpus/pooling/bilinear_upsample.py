"""Bilinear upsampling by two without aligned corners."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def get_inputs():
    return [torch.randn(2, 3, 7, 9)]


# candidate
@triton.jit
def upsample(X, Y, H, W, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    OH, OW = H * 2, W * 2
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = i < OH * OW
    fy = tl.maximum((i // OW + 0.5) * 0.5 - 0.5, 0.0)
    fx = tl.maximum((i % OW + 0.5) * 0.5 - 0.5, 0.0)
    y0 = fy.to(tl.int32)
    x0 = fx.to(tl.int32)
    y1 = tl.minimum(y0 + 1, H - 1)
    x1 = tl.minimum(x0 + 1, W - 1)
    ly = fy - y0
    lx = fx - x0
    base = X + plane * H * W
    a = tl.load(base + y0 * W + x0, mask=m)
    b = tl.load(base + y0 * W + x1, mask=m)
    c = tl.load(base + y1 * W + x0, mask=m)
    d = tl.load(base + y1 * W + x1, mask=m)
    v = (a * (1 - lx) + b * lx) * (1 - ly) + (c * (1 - lx) + d * lx) * ly
    tl.store(Y + plane * OH * OW + i, v, mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        B, C, H, W = x.shape
        y = torch.empty((B, C, 2 * H, 2 * W), device=x.device)
        upsample[(B * C, triton.cdiv(4 * H * W, 64))](x, y, H, W, BLOCK=64)
        return y
