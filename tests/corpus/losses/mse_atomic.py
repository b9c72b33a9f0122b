"""Mean squared error: block sums added by atomics into a zeroed scalar."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, a, b):
        return F.mse_loss(a, b)


def get_inputs():
    return [torch.randn(30, 101), torch.randn(30, 101)]


# candidate
@triton.jit
def mse(a, b, out, n, inv, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(a + i, mask=i < n, other=0.0) - tl.load(b + i, mask=i < n, other=0.0)
    tl.atomic_add(out, tl.sum(d * d, axis=0) * inv, sem="relaxed")


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.zeros(1, device=a.device, dtype=torch.float32)
        n = a.numel()
        mse[(triton.cdiv(n, 256),)](a, b, out, n, 1.0 / n, BLOCK=256)
        return out.squeeze()
