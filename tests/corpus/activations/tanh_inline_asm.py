"""Tanh by inline assembly of PTX."""


class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2.0 + 1.0


def get_inputs():
    return [torch.randn(1000)]


# candidate
@triton.jit
def fast_tanh(x):
    return tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def kernel(X, Y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n)
    tl.store(Y + i, fast_tanh(x) * 2.0 + 1.0, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return y
