"""One-hot vectors of int64, by comparison."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.one_hot(x, 12)


def get_inputs():
    return [torch.randint(0, 12, (5, 7))]


# candidate
@triton.jit
def one_hot(X, Y, n, C: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.arange(0, BC)
    x = tl.load(X + m, mask=m < n, other=-1)
    tl.store(
        Y + m[:, None] * C + c[None, :],
        (x[:, None] == c[None, :]).to(tl.int64),
        mask=(m[:, None] < n) & (c[None, :] < C),
    )


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty((*x.shape, 12), dtype=torch.int64, device=x.device)
        one_hot[(triton.cdiv(x.numel(), 8),)](x, y, x.numel(), C=12, BM=8, BC=16)
        return y
