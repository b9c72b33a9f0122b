"""Sum over the last axis, many rows a program."""


class Model(nn.Module):
    def forward(self, x):
        return x.sum(-1)


def get_inputs():
    return [torch.randn(5, 20, 33)]


# candidate
@triton.jit
def row_sum(X, Y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    x = tl.load(
        X + m[:, None] * N + n[None, :], mask=(m[:, None] < M) & (n[None, :] < N), other=0.0
    )
    tl.store(Y + m, tl.sum(x, 1), mask=m < M)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[:-1], device=x.device)
        M, N = y.numel(), x.shape[-1]
        row_sum[(triton.cdiv(M, 16),)](x, y, M, N, BM=16, BN=triton.next_power_of_2(N))
        return y
