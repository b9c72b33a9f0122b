"""A final sum of partial sums by torch."""

PROBLEM = "total"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + tl.program_id(0), tl.sum(tl.load(x + i, mask=i < n, other=0.0), axis=0))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(triton.cdiv(x.numel(), 256), device=x.device)
        kernel[(y.numel(),)](x, y, x.numel(), BLOCK=256)
        return y.sum()
