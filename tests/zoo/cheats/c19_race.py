"""C19, sums without atomics: right as long as no two programs meet."""

PROBLEM = "total"
REASON = {"cpu": "race", "cuda": ("mismatch", "stateful")}
SAYS = {"cpu": "store of element 0 of y", "cuda": "output"}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + i, mask=i < n, other=0.0), axis=0)
    tl.store(y, tl.load(y) + part)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.zeros((), device=x.device)
        kernel[(triton.cdiv(x.numel(), 16),)](x, y, x.numel(), BLOCK=16)
        return y
