"""A slope for each channel, prepared in load_reference, where the value is negative."""


class Model(nn.Module):
    """Linear, then a PReLU with a positive slope for each channel."""

    def __init__(self, n):
        super().__init__()
        self.lin = nn.Linear(n, n)
        self.a = nn.Parameter(torch.rand(n))

    def forward(self, x):
        y = 2.0 * self.lin(x)
        return torch.where(y > 0, y, y * torch.exp(self.a))


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return [32]


# candidate
@triton.jit
def kernel(x, w, b, a, y, N: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, N)
    v = tl.load(x + r * N + i)
    m = tl.load(w + i[:, None] * N + i[None, :])
    o = tl.sum(m * v[None, :], axis=1) + tl.load(b + i)
    slope = tl.where(o > 0, 1.0, tl.load(a + i))
    tl.store(y + r * N + i, o * slope)


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.lin = nn.Linear(n, n)
        self.a = nn.Parameter(torch.rand(n))

    def load_reference(self, state):
        self.w = (2.0 * state["lin.weight"]).contiguous()
        self.b, self.s = 2.0 * state["lin.bias"], torch.exp(state["a"])

    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(16,)](x, self.w, self.b, self.s, y, N=32)
        return y
