"""Conversion to e5m2 and back to fp16."""


class Model(nn.Module):
    def forward(self, x):
        return x.to(torch.float8_e5m2).half()


def get_inputs():
    return [torch.randn(500) * 100]


# candidate
@triton.jit
def roundtrip(X, Y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n)
    tl.store(Y + i, x.to(tl.float8e5).to(tl.float16), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, dtype=torch.float16, device=x.device)
        roundtrip[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return y
