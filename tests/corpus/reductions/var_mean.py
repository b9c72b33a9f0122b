"""Variance and mean of rows in one kernel, unbiased."""


class Model(nn.Module):
    def forward(self, x):
        return torch.var_mean(x, dim=-1)


def get_inputs():
    return [torch.randn(14, 90) * 2 + 1]


# candidate
@triton.jit
def var_mean(X, V, M, N, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    m = i < N
    x = tl.load(X + r * N + i, mask=m, other=0.0)
    mean = tl.sum(x) / N
    d = tl.where(m, x - mean, 0.0)
    tl.store(V + r, tl.sum(d * d) / (N - 1))
    tl.store(M + r, mean)


class ModelNew(nn.Module):
    def forward(self, x):
        v = torch.empty(x.shape[0], device=x.device)
        m = torch.empty_like(v)
        var_mean[(x.shape[0],)](x, v, m, x.shape[1], BLOCK=128)
        return v, m
