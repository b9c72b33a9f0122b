"""Layer norm of rows that fit into one block."""


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(30, 200)]


def get_init_inputs():
    return [200]


# candidate
@triton.jit
def layer_norm(X, Y, W, B, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / N
    centered = tl.where(mask, x - mean, 0.0)
    var = tl.sum(centered * centered, axis=0) / N
    rstd = 1 / tl.sqrt(var + eps)
    w = tl.load(W + cols, mask=mask)
    b = tl.load(B + cols, mask=mask)
    tl.store(Y + row * stride + cols, centered * rstd * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x):
        y = torch.empty_like(x)
        M, N = x.shape
        layer_norm[(M,)](
            x,
            y,
            self.norm.weight,
            self.norm.bias,
            x.stride(0),
            N,
            self.norm.eps,
            BLOCK=triton.next_power_of_2(N),
        )
        return y
