"""Softmax of long rows in two passes with a running maximum."""


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(6, 1000)]


# candidate
@triton.jit
def online(X, Y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    X += row * N
    Y += row * N
    m = tl.full((), float("-inf"), tl.float32)
    d = 0.0
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(X + cols, mask=cols < N, other=float("-inf"))
        new = tl.maximum(m, tl.max(x))
        d = d * tl.exp(m - new) + tl.sum(tl.exp(x - new))
        m = new
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(X + cols, mask=cols < N, other=float("-inf"))
        tl.store(Y + cols, tl.exp(x - m) / d, mask=cols < N)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        online[(x.shape[0],)](x, y, x.shape[1], BLOCK=128)
        return y
