"""Batched product with a three-dimensional tl.dot."""


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b)


def get_inputs():
    return [torch.randn(6, 32, 24), torch.randn(6, 24, 32)]


# candidate
@triton.jit
def bmm(
    A,
    B,
    C,
    BATCH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
):
    z = tl.program_id(0) * BATCH + tl.arange(0, BATCH)[:, None, None]
    m = tl.arange(0, M)[None, :, None]
    n = tl.arange(0, N)[None, None, :]
    k = tl.arange(0, BK)
    a = tl.load(A + z * M * K + m * K + k[None, None, :], mask=k[None, None, :] < K, other=0.0)
    b = tl.load(B + z * K * N + k[None, :, None] * N + n, mask=k[None, :, None] < K, other=0.0)
    c = tl.dot(a, b, input_precision="ieee")
    tl.store(C + z * M * N + m * N + n, c)


class ModelNew(nn.Module):
    def forward(self, a, b):
        Z, M, K = a.shape
        N = b.shape[2]
        c = torch.empty((Z, M, N), device=a.device)
        bmm[(Z // 2,)](a, b, c, BATCH=2, M=M, N=N, K=K, BK=32)
        return c
