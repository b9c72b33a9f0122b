"""A kernel held by a class, a wrapper in the manner of torch.autograd.Function."""


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n) * 0.5)

    def forward(self, x):
        return torch.relu(x) * self.scale


def get_inputs():
    return [torch.randn(12, 40)]


def get_init_inputs():
    return [40]


# candidate
@triton.jit
def scaled_relu(X, S, Y, n, C, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n)
    tl.store(Y + i, tl.maximum(x, 0) * tl.load(S + i % C, mask=i < n), mask=i < n)


class ScaledRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        y = torch.empty_like(x)
        grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
        scaled_relu[grid](x, scale, y, x.numel(), x.shape[-1], BLOCK=128)
        ctx.save_for_backward(x, scale)
        return y


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n) * 0.5)

    def forward(self, x):
        return ScaledRelu.apply(x, self.scale)
