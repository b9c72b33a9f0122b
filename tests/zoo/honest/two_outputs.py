"""Two outputs, one of them boolean."""

PROBLEM = "two_outputs"


@triton.jit
def kernel(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value + 1, mask=i < n)
    tl.store(z + i, value > 0, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y, z = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
        kernel[(1,)](x, y, z, x.numel(), BLOCK=64)
        return y, z
