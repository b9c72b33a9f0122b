"""SiLU in bf16, computed in fp32 and rounded once."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.silu(x.float()).to(torch.bfloat16)


def get_inputs():
    return [torch.randn(64, 100).to(torch.bfloat16)]


# candidate
@triton.jit
def silu(X, Y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n).to(tl.float32)
    y = x * tl.sigmoid(x)
    tl.store(Y + i, y.to(Y.dtype.element_ty), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        silu[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
