"""A reference whose lambda refers to its layers, and an answer in all bits of fp32."""


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleDict(
            {"up": nn.Linear(width, 2 * width), "down": nn.Linear(2 * width, width)}
        )
        layers = self.layers
        self.mlp = lambda x: layers["down"](torch.tanh(layers["up"](x)))

    def forward(self, x):
        return x + self.mlp(x)


def get_inputs():
    return [torch.randn(24, 64)]


def get_init_inputs():
    return [64]


# candidate
@triton.jit
def linear(X, W, B, R, Y, M, N, K, UP: tl.constexpr, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        x = tl.load(X + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
        w = tl.load(W + n[None, :] * K + k[:, None])
        total = tl.dot(x, w, total, input_precision="ieee")
    total += tl.load(B + n)[None, :]
    place = m[:, None] * N + n[None, :]
    if UP:
        total = 2.0 * tl.sigmoid(2.0 * total) - 1.0
    else:
        total += tl.load(R + place, mask=m[:, None] < M, other=0.0)
    tl.store(Y + place, total, mask=m[:, None] < M)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleDict(
            {"up": nn.Linear(width, 2 * width), "down": nn.Linear(2 * width, width)}
        )

    def forward(self, x):
        up, down = self.layers["up"], self.layers["down"]
        rows, width = x.shape
        wide, y = x.new_empty(rows, 2 * width), torch.empty_like(x)
        grid = (triton.cdiv(rows, 32), 2 * width // 32)
        linear[grid](x, up.weight, up.bias, x, wide, rows, 2 * width, width, UP=True, BLOCK=32)
        grid = (triton.cdiv(rows, 32), width // 32)
        linear[grid](wide, down.weight, down.bias, x, y, rows, width, 2 * width, UP=False, BLOCK=32)
        return y
