"""Counts by atomics, in integers."""

PROBLEM = "histogram"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + tl.load(x + i, mask=i < n, other=0), 1, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.zeros(8, dtype=torch.int64, device=x.device)
        kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
