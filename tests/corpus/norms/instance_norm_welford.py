"""Instance norm with a Welford reduction of tuples over a loop."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.instance_norm(x)


def get_inputs():
    return [torch.randn(2, 5, 11, 13) * 3 + 2]


# candidate
@triton.jit
def welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    delta = mean_b - mean_a
    n = n_a + n_b
    ratio = tl.where(n == 0.0, 0.0, n_b / n)
    return mean_a + delta * ratio, m2_a + m2_b + delta * delta * n_a * ratio, n


@triton.jit
def instance_norm(X, Y, N, eps, BLOCK: tl.constexpr):
    base = tl.program_id(0) * N
    mean = tl.zeros((BLOCK,), tl.float32)
    m2 = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < N
        x = tl.load(X + base + i, mask=mask, other=0.0)
        count += mask.to(tl.float32)
        delta = x - mean
        new = mean + tl.where(mask, delta / tl.maximum(count, 1.0), 0.0)
        m2 += tl.where(mask, delta * (x - new), 0.0)
        mean = new
    mu, total, n = tl.reduce((mean, m2, count), 0, welford)
    rstd = tl.rsqrt(total / n + eps)
    for start in range(0, N, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(X + base + i, mask=i < N, other=0.0)
        tl.store(Y + base + i, (x - mu) * rstd, mask=i < N)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        instance_norm[(x.shape[0] * x.shape[1],)](x, y, x.shape[2] * x.shape[3], 1e-5, BLOCK=64)
        return y
