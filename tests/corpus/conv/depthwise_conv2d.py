"""Depthwise convolution, two loops over the window."""

import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)

    def forward(self, x):
        return F.silu(self.conv(x))


def get_inputs():
    return [torch.randn(2, 6, 12, 10)]


def get_init_inputs():
    return [6]


# candidate
@triton.jit
def depthwise(X, W, Y, C, H, WD, BH: tl.constexpr, BW: tl.constexpr):
    plane = tl.program_id(0)
    c = plane % C
    h = tl.arange(0, BH)[:, None]
    w = tl.arange(0, BW)[None, :]
    acc = tl.zeros((BH, BW), tl.float32)
    for i in range(3):
        for j in range(3):
            hh = h + i - 1
            ww = w + j - 1
            m = (hh >= 0) & (hh < H) & (ww >= 0) & (ww < WD)
            acc += tl.load(X + plane * H * WD + hh * WD + ww, mask=m, other=0.0) * tl.load(
                W + c * 9 + i * 3 + j
            )
    y = acc * tl.sigmoid(acc)
    tl.store(Y + plane * H * WD + h * WD + w, y, mask=(h < H) & (w < WD))


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)

    def forward(self, x):
        B, C, H, W = x.shape
        y = torch.empty_like(x)
        depthwise[(B * C,)](x, self.conv.weight, y, C, H, W, BH=16, BW=16)
        return y
