"""A helper of scalars that is not inlined, so that the module has a call."""


class Model(nn.Module):
    def forward(self, x):
        n = torch.arange(x.shape[0], device=x.device).float() + 1
        return x * (n * n * n)[:, None]


def get_inputs():
    return [torch.randn(13, 30)]


# candidate
@triton.jit(noinline=True)
def cube(n):
    return n * n * n


@triton.jit
def kernel(X, Y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(X + row * N + i, mask=i < N)
    tl.store(Y + row * N + i, x * cube(row + 1).to(tl.float32), mask=i < N)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=32)
        return y
