"""Smooth L1 loss summed by rows."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, a, b):
        return F.smooth_l1_loss(a, b, reduction="none", beta=0.7).sum(-1)


def get_inputs():
    return [torch.randn(25, 60), torch.randn(25, 60)]


# candidate
@triton.jit
def huber(a, b, out, M, N, beta: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, N, BN):
        rn = start + tl.arange(0, BN)
        m = (rm[:, None] < M) & (rn[None, :] < N)
        o = rm[:, None] * N + rn[None, :]
        d = tl.abs(tl.load(a + o, mask=m, other=0.0) - tl.load(b + o, mask=m, other=0.0))
        acc += tl.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)
    # beyond the end d is 0, which adds nothing
    tl.store(out + rm, tl.sum(acc, 1), mask=rm < M)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty(a.shape[0], device=a.device)
        huber[(triton.cdiv(a.shape[0], 8),)](a, b, out, *a.shape, beta=0.7, BM=8, BN=32)
        return out
