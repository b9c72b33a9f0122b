"""Product of lower triangular matrices; blocks above the diagonal are skipped."""


class Model(nn.Module):
    def forward(self, a, b):
        return torch.tril(a @ b)


def get_inputs():
    return [torch.tril(torch.randn(80, 80)), torch.tril(torch.randn(80, 80))]


# candidate
@triton.jit
def tril_matmul(A, B, C, N, BLOCK: tl.constexpr):
    pm, pn = tl.program_id(0), tl.program_id(1)
    m = pm * BLOCK + tl.arange(0, BLOCK)
    n = pn * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    if pm >= pn:
        for kb in range(pn, pm + 1):
            k = kb * BLOCK + tl.arange(0, BLOCK)
            a = tl.load(
                A + m[:, None] * N + k[None, :], mask=(m[:, None] < N) & (k[None, :] < N), other=0.0
            )
            b = tl.load(
                B + k[:, None] * N + n[None, :], mask=(k[:, None] < N) & (n[None, :] < N), other=0.0
            )
            acc += tl.dot(a, b, input_precision="ieee")
    acc = tl.where(m[:, None] >= n[None, :], acc, 0.0)
    tl.store(C + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < N) & (n[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty_like(a)
        n = a.shape[0]
        tril_matmul[(triton.cdiv(n, 16), triton.cdiv(n, 16))](a, b, c, n, BLOCK=16)
        return c
