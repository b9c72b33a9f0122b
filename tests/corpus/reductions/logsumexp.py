"""Log-sum-exp over a long axis with blocks in a second launch."""


class Model(nn.Module):
    def forward(self, x):
        return torch.logsumexp(x, dim=1)


def get_inputs():
    return [torch.randn(7, 500) * 4]


# candidate
@triton.jit
def part(X, M, S, N, BLOCKS, BLOCK: tl.constexpr):
    r, b = tl.program_id(0), tl.program_id(1)
    i = b * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + r * N + i, mask=i < N, other=float("-inf"))
    m = tl.max(x, 0)
    tl.store(M + r * BLOCKS + b, m)
    tl.store(S + r * BLOCKS + b, tl.sum(tl.exp(x - m), 0))


@triton.jit
def finish(M, S, Y, BLOCKS, BP: tl.constexpr):
    r = tl.program_id(0)
    b = tl.arange(0, BP)
    m = tl.load(M + r * BLOCKS + b, mask=b < BLOCKS, other=float("-inf"))
    s = tl.load(S + r * BLOCKS + b, mask=b < BLOCKS, other=0.0)
    top = tl.max(m, 0)
    tl.store(Y + r, top + tl.log(tl.sum(s * tl.exp(m - top), 0)))


class ModelNew(nn.Module):
    def forward(self, x):
        R, N = x.shape
        blocks = triton.cdiv(N, 128)
        m = torch.empty((R, blocks), device=x.device)
        s = torch.empty_like(m)
        y = torch.empty(R, device=x.device)
        part[(R, blocks)](x, m, s, N, blocks, BLOCK=128)
        finish[(R,)](m, s, y, blocks, BP=triton.next_power_of_2(blocks))
        return y
