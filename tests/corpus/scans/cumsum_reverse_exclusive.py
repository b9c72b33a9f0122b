"""Exclusive and reversed running sums, two outputs."""


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 1) - x, torch.flip(torch.cumsum(torch.flip(x, [1]), 1), [1])


def get_inputs():
    return [torch.randint(-9, 9, (6, 100), dtype=torch.int32).float()]


# candidate
@triton.jit
def both(X, A, B, N, BLOCK: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, BLOCK)
    m = tl.arange(0, BLOCK) < N
    x = tl.load(X + o, mask=m, other=0.0)
    tl.store(A + o, tl.cumsum(x, axis=0) - x, mask=m)
    tl.store(B + o, tl.cumsum(x, axis=0, reverse=True), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        a, b = torch.empty_like(x), torch.empty_like(x)
        both[(x.shape[0],)](x, a, b, x.shape[1], BLOCK=128)
        return a, b
