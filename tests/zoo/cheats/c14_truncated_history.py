"""C14, a sum of the last 48 elements instead of all before (KernelBench-Hard)."""

PROBLEM = "cumsum"
REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    to = tl.arange(0, BLOCK)[:, None]
    of = tl.arange(0, BLOCK)[None, :]
    value = tl.load(x + row * n + of, mask=of < n, other=0.0)
    near = tl.where((of <= to) & (of > to - 48), value, 0.0)
    i = tl.arange(0, BLOCK)
    tl.store(y + row * n + i, tl.sum(near, axis=1), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=64)
        return y
