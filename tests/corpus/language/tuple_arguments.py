"""A kernel with a tuple of tensors and a tuple of scalars as arguments."""


class Model(nn.Module):
    def forward(self, a, b, c):
        return 0.5 * a + 0.25 * b - 2.0 * c


def get_inputs():
    return [torch.randn(200), torch.randn(200), torch.randn(200)]


# candidate
@triton.jit
def combine(inputs, weights, Y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(len(inputs)):
        acc += tl.load(inputs[k] + i, mask=i < n, other=0.0) * weights[k]
    tl.store(Y + i, acc, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, a, b, c):
        y = torch.empty_like(a)
        combine[(triton.cdiv(a.numel(), 64),)]((a, b, c), (0.5, 0.25, -2.0), y, a.numel(), BLOCK=64)
        return y
