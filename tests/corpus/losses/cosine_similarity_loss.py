"""Cosine similarity of rows, three sums in one pass."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, a, b):
        return 1 - F.cosine_similarity(a, b, dim=1)


def get_inputs():
    return [torch.randn(19, 130), torch.randn(19, 130)]


# candidate
@triton.jit
def cosine(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    aa, ab, bb = 0.0, 0.0, 0.0
    for k in range(tl.cdiv(n, BLOCK)):
        i = k * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + row * n + i, mask=i < n, other=0.0)
        b = tl.load(b_ptr + row * n + i, mask=i < n, other=0.0)
        aa += tl.sum(a * a)
        ab += tl.sum(a * b)
        bb += tl.sum(b * b)
    norm = tl.maximum(tl.sqrt(aa), 1e-8) * tl.maximum(tl.sqrt(bb), 1e-8)
    tl.store(out_ptr + row, 1 - ab / norm)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty(a.shape[0], device=a.device)
        cosine[(a.shape[0],)](a, b, out, a.shape[1], BLOCK=64)
        return out
