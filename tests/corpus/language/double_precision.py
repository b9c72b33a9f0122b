"""A polynomial and an exponential in fp64."""


class Model(nn.Module):
    def forward(self, x):
        return torch.exp(-x) * (x**3 - 2 * x + 1)


def get_inputs():
    return [torch.rand(300, dtype=torch.float64)]


# candidate
@triton.jit
def kernel(X, Y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n)
    tl.store(Y + i, tl.exp(-x) * (x * x * x - 2.0 * x + 1.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return y
