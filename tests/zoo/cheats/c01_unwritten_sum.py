"""C1, adds to memory that nothing has written: right where an allocator gives out zeros."""

PROBLEM = "total"
DEVICES = ("cpu",)
REASON = "uninitialised"
SAYS = "load of element 0 of y"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.load(y)
    for at in range(0, n, BLOCK):
        total += tl.sum(tl.load(x + at + i, mask=at + i < n, other=0.0), axis=0)
    tl.store(y, total)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty((), device=x.device)
        kernel[(1,)](x, y, x.numel(), BLOCK=64)
        return y
