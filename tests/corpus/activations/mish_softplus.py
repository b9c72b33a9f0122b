"""Mish with a stable softplus, fp16 in and out."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.mish(x.float()).half()


def get_inputs():
    return [(torch.randn(50, 70) * 5).half()]


# candidate
from triton.language.extra.cuda import libdevice


@triton.jit
def mish(X, Y, n, BLOCK: tl.constexpr):
    start = tl.program_id(axis=0) * BLOCK
    offs = start + tl.arange(0, BLOCK)
    x = tl.load(X + offs, mask=offs < n, other=0.0).to(tl.float32)
    soft = tl.where(x > 20.0, x, libdevice.log1p(tl.exp(tl.minimum(x, 20.0))))
    tl.store(Y + offs, (x * libdevice.tanh(soft)).to(tl.float16), mask=offs < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        mish[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), BLOCK=512)
        return y
