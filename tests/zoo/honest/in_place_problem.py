"""A problem that changes its input: so does the answer."""

PROBLEM = "in_place"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value + 1, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        kernel[(triton.cdiv(x.numel(), 256),)](x, x, x.numel(), BLOCK=256)
        return x
