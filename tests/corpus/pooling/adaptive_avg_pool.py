"""Global average pooling over planes."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.adaptive_avg_pool2d(x, 1)


def get_inputs():
    return [torch.randn(3, 7, 17, 19)]


# candidate
@triton.jit
def mean_plane(x, y, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    i = tl.arange(0, BLOCK)
    for s in range(0, n, BLOCK):
        acc += tl.load(x + p * n + s + i, mask=s + i < n, other=0.0)
    tl.store(y + p, tl.sum(acc) / n)


class ModelNew(nn.Module):
    def forward(self, x):
        B, C, H, W = x.shape
        y = torch.empty((B, C, 1, 1), device=x.device)
        mean_plane[(B * C,)](x, y, H * W, BLOCK=128)
        return y
