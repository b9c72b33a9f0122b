"""A function evaluated while the kernel is compiled."""


class Model(nn.Module):
    def forward(self, x):
        return x.view(-1, 4, 8).sum(-1)


def get_inputs():
    return [torch.randn(10, 32)]


# candidate
@triton.constexpr_function
def log2(n):
    return n.bit_length() - 1


@triton.jit
def kernel(X, Y, N: tl.constexpr, G: tl.constexpr):
    SHIFT: tl.constexpr = log2(G)
    r = tl.program_id(0)
    x = tl.load(X + r * N + tl.arange(0, N))
    s = tl.sum(tl.reshape(x, (N >> SHIFT, G)), 1)
    tl.store(Y + r * (N >> SHIFT) + tl.arange(0, N >> SHIFT), s)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty((x.shape[0], 4), device=x.device)
        kernel[(x.shape[0],)](x, y, N=32, G=8)
        return y
