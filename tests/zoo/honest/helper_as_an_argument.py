"""A kernel that gets the other one to apply as an argument."""


@triton.jit
def double(value):
    return value * 2


@triton.jit
def kernel(x, y, n, LAST: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.maximum(tl.load(x + i, mask=i < n), 0.0)
    tl.store(y + i, LAST(value), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), LAST=double, BLOCK=256)
        return y
